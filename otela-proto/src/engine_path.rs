//! Which paths of an engine may be reached through the mesh.
//!
//! An engine also has routes that change or reveal it (loading adapters, profiling, sleeping), and its own API key
//! does not cover them all. So there is a list of what is allowed, checked by the ingress and again by the node,
//! against the path exactly as it was sent: whoever writes a path in a roundabout way does not match.

/// Inference routes, below `/v1`.
const ALLOWED: [&str; 19] = [
    "audio/speech",
    "audio/transcriptions",
    "audio/translations",
    "chat/completions",
    "classify",
    "completions",
    "detokenize",
    "embeddings",
    "images/edits",
    "images/generations",
    "images/variations",
    "messages",
    "messages/count_tokens",
    "moderations",
    "pooling",
    "rerank",
    "responses",
    "score",
    "tokenize",
];

/// Routes that engines have outside `/v1` as well, and some only there.
const ALSO_AT_ROOT: [&str; 7] = ["classify", "detokenize", "pooling", "rerank", "score", "tokenize", "v2/rerank"];

/// Inference routes that engines answer without their model.
const WITHOUT_MODEL: [&str; 5] =
    ["/detokenize", "/tokenize", "/v1/detokenize", "/v1/messages/count_tokens", "/v1/tokenize"];

/// Whether `path` is an inference route whose answer is a model's.
#[must_use]
pub fn is_for_a_model(path: &str) -> bool {
    is_inference(path) && !WITHOUT_MODEL.contains(&path)
}

/// Whether `path`, without query and exactly as sent, is an inference route.
#[must_use]
pub fn is_inference(path: &str) -> bool {
    match path.strip_prefix("/v1/") {
        Some(rest) => ALLOWED.binary_search(&rest).is_ok(),
        None => path.strip_prefix('/').is_some_and(|rest| ALSO_AT_ROOT.contains(&rest)),
    }
}

/// All inference routes, for whoever describes them.
pub fn inference() -> impl Iterator<Item = String> {
    let below = ALLOWED.into_iter().map(|rest| format!("/v1/{rest}"));
    below.chain(ALSO_AT_ROOT.into_iter().map(|rest| format!("/{rest}")))
}

/// Whether `path`, exactly as sent, is one of those that a provider has opened: itself, or below one that ends in `/`. Paths
/// written in a roundabout way are not.
#[must_use]
pub fn is_opened(path: &str, opened: &[String]) -> bool {
    let is_plain = path.starts_with('/')
        && !path.contains("//")
        && !path.split('/').any(|segment| segment == "." || segment == "..")
        && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~:@".contains(&byte));
    let covers =
        |open: &String| path == open || (open.ends_with('/') && open.len() > 1 && path.starts_with(open.as_str()));
    is_plain && opened.iter().any(covers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p25_only_inference_is_reachable() {
        assert!(ALLOWED.is_sorted());
        for good in
            ["/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/tokenize", "/v2/rerank", "/v1/messages"]
        {
            assert!(is_inference(good), "{good}");
        }
        let control = [
            "/sleep",
            "/reset_prefix_cache",
            "/collective_rpc",
            "/v1/load_lora_adapter",
            "/load_lora_adapter_from_tensors",
            "/start_profile",
            "/metrics",
            "/openapi.json",
            "/v1/models",
            "/v1/models;/sleep",
        ];
        let tricks = [
            "/v1/../sleep",
            "/v1/%2e%2e/sleep",
            "//sleep",
            "/v1//completions",
            "/v1/chat/completions/",
            "/v1/chat%2Fcompletions",
            "/v1/chat/completions;x",
            "v1/completions",
            "",
        ];
        for bad in control.into_iter().chain(tricks) {
            assert!(!is_inference(bad), "{bad}");
        }
    }

    #[test]
    fn counting_tokens_needs_no_model() {
        assert!(WITHOUT_MODEL.iter().all(|path| is_inference(path) && !is_for_a_model(path)));
        assert!(is_for_a_model("/v1/messages") && is_for_a_model("/score") && !is_for_a_model("/sleep"));
    }

    #[test]
    fn p25_what_a_provider_opens_is_open_and_nothing_beside_it() {
        let opened = ["/v1/echo".to_owned(), "/custom/".to_owned(), "/".to_owned()];
        for good in ["/v1/echo", "/custom/a", "/custom/a/b.c"] {
            assert!(is_opened(good, &opened), "{good}");
        }
        for bad in [
            "/v1/echoes",
            "/v1/echo/",
            "/custom",
            "/custom/../sleep",
            "/custom/./x",
            "/custom/%2e%2e/sleep",
            "/custom//x",
            "/custom/a;b",
            "/sleep",
            "custom/a",
        ] {
            assert!(!is_opened(bad, &opened), "{bad}");
        }
    }
}
