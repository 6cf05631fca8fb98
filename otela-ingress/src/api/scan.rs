//! Finds in a JSON body what routing needs, in one pass and without building the document. The fuzz target `scan` takes
//! this file as it is, so it names nothing else of the crate.

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt, ops::Range};

/// What a body says that matters on its way. Ranges are places in the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// `model`; not empty.
    pub(crate) model: Option<String>,
    /// Whether `stream` is true.
    pub(crate) stream: bool,
    /// `metadata.otela_trusted_providers`, taken apart.
    pub(crate) trusted: Option<Vec<String>>,
    /// `metadata.otela_require`.
    pub(crate) require: Option<String>,
    /// `messages` of a chat.
    pub(crate) messages: Option<Range<usize>>,
    /// `prompt` of a completion.
    pub(crate) prompt: Option<Range<usize>>,
    /// `input` of embeddings and responses.
    pub(crate) input: Option<Range<usize>>,
    /// `stream_options`.
    pub(crate) stream_options: Option<Range<usize>>,
    /// `max_completion_tokens` and `max_tokens`, as far as they are there.
    pub(crate) limits: Vec<(Range<usize>, u64)>,
    /// `prompt_cache_key`, by which clients say which requests begin alike.
    pub(crate) cache_key: Option<String>,
    /// Whether nothing in it asks for more than one plain text: the answer could be continued by another engine.
    pub(crate) is_plain: bool,
    /// Just behind the opening brace: where a field can be put in.
    pub(crate) opens_at: usize,
    /// Whether the object holds no field.
    pub(crate) is_empty: bool,
}

impl Scan {
    /// The most tokens that the client lets the answer have.
    pub(crate) fn max_tokens(&self) -> Option<u64> {
        self.limits.iter().map(|(_, limit)| *limit).min()
    }
}

/// Why a body cannot be routed by. Each text is the message to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("The request has no body; a JSON object with `model` is needed.")]
    Empty,
    #[error("The request body is not valid: a JSON object is needed.")]
    NotAnObject,
    #[error("The request body is not valid: {0}.")]
    Invalid(serde_json::Error),
}

impl Unreadable {
    /// The field that is wrong, if it is one.
    pub(crate) fn field(&self) -> Option<&'static str> {
        let Self::Invalid(error) = self else { return None };
        let text = error.to_string();
        ["model", "stream_options", "stream", "metadata"].into_iter().find(|field| text.contains(&format!("`{field}")))
    }
}

/// What a JSON body says.
pub(crate) fn scan(body: &[u8]) -> Result<Scan, Unreadable> {
    if body.trim_ascii().is_empty() {
        return Err(Unreadable::Empty);
    }
    let opens_at = body.len() - body.trim_ascii_start().len();
    if body[opens_at] != b'{' {
        return Err(Unreadable::NotAnObject);
    }
    let mut read = serde_json::Deserializer::from_slice(body);
    let visitor = Object { base: body.as_ptr() as usize };
    let mut found = read.deserialize_map(visitor).map_err(Unreadable::Invalid)?;
    read.end().map_err(Unreadable::Invalid)?;
    found.opens_at = opens_at + 1;
    Ok(found)
}

/// The keys that are looked at.
enum Key {
    Model,
    Stream,
    Metadata,
    Messages,
    Prompt,
    Input,
    StreamOptions,
    MaxTokens,
    PromptCache,
    /// It does not matter to whoever continues an answer.
    Plain,
    /// It does, unless it has its usual value.
    PlainIfUsual,
    Other,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(read: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(Key::of(key))
            }
        }
        read.deserialize_identifier(Name)
    }
}

impl Key {
    fn of(key: &str) -> Self {
        match key {
            "model" => Self::Model,
            "stream" => Self::Stream,
            "metadata" => Self::Metadata,
            "messages" => Self::Messages,
            "prompt" => Self::Prompt,
            "input" => Self::Input,
            "stream_options" => Self::StreamOptions,
            "max_tokens" | "max_completion_tokens" => Self::MaxTokens,
            "prompt_cache_key" => Self::PromptCache,
            "temperature"
            | "top_p"
            | "top_k"
            | "min_p"
            | "seed"
            | "stop"
            | "stop_token_ids"
            | "presence_penalty"
            | "frequency_penalty"
            | "repetition_penalty"
            | "logit_bias"
            | "ignore_eos"
            | "user"
            | "safety_identifier"
            | "store"
            | "service_tier"
            | "priority"
            | "skip_special_tokens"
            | "chat_template_kwargs" => Self::Plain,
            "n"
            | "best_of"
            | "tools"
            | "tool_choice"
            | "functions"
            | "function_call"
            | "logprobs"
            | "top_logprobs"
            | "prompt_logprobs"
            | "echo"
            | "suffix"
            | "response_format"
            | "modalities"
            | "parallel_tool_calls" => Self::PlainIfUsual,
            _ => Self::Other,
        }
    }
}

/// Values that ask for nothing.
fn is_usual(value: &str) -> bool {
    let dense: String = value.chars().filter(|char| !char.is_ascii_whitespace()).take(32).collect();
    let usual = ["null", "false", "0", "1", "[]", "\"\"", "\"none\"", "[\"text\"]", "{\"type\":\"text\"}"];
    usual.contains(&dense.as_str())
}

/// The fields of `metadata` that are ours.
#[derive(Debug, Default, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, default)]
    otela_trusted_providers: Option<Listed<'a>>,
    #[serde(borrow, default)]
    otela_require: Option<Cow<'a, str>>,
}

/// A list, or one text with commas.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Listed<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    #[serde(borrow)]
    List(Vec<Cow<'a, str>>),
}

impl From<Listed<'_>> for Vec<String> {
    fn from(listed: Listed<'_>) -> Self {
        match listed {
            Listed::Text(text) => text.split(',').map(|id| id.trim().to_owned()).collect(),
            Listed::List(ids) => ids.into_iter().map(Cow::into_owned).collect(),
        }
    }
}

struct Object {
    /// Where the body begins in memory.
    base: usize,
}

impl Object {
    fn place(&self, raw: &RawValue) -> Range<usize> {
        let from = raw.get().as_ptr() as usize - self.base;
        from..from + raw.get().len()
    }
}

/// Notes that a field was given. Naming one of ours twice is an error: which of the two an engine would take is
/// anybody's guess.
fn once<E: serde::de::Error>(seen: &mut bool, field: &'static str) -> Result<(), E> {
    if std::mem::replace(seen, true) { Err(E::duplicate_field(field)) } else { Ok(()) }
}

impl<'de> Visitor<'de> for Object {
    type Value = Scan;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scan, A::Error> {
        let mut found = Scan { is_plain: true, is_empty: true, ..Scan::default() };
        let (mut model, mut stream, mut metadata, mut options) = (false, false, false, false);
        while let Some(key) = map.next_key::<Key>()? {
            found.is_empty = false;
            match key {
                Key::Model => {
                    once(&mut model, "model")?;
                    let name = map.next_value::<&RawValue>()?.get();
                    found.model = serde_json::from_str::<Option<String>>(name)
                        .map_err(|_| A::Error::custom("`model` is not a string"))?
                        .filter(|name| !name.is_empty());
                }
                Key::Stream => {
                    once(&mut stream, "stream")?;
                    found.stream = map.next_value::<&RawValue>()?.get() == "true";
                }
                Key::Metadata => {
                    once(&mut metadata, "metadata")?;
                    (found.trusted, found.require) = ours(map.next_value::<&RawValue>()?.get())?;
                }
                Key::StreamOptions => {
                    once(&mut options, "stream_options")?;
                    found.stream_options = Some(self.place(map.next_value()?));
                }
                Key::Messages => found.messages = Some(self.place(map.next_value()?)),
                Key::Prompt => found.prompt = Some(self.place(map.next_value()?)),
                Key::Input => found.input = Some(self.place(map.next_value()?)),
                Key::MaxTokens => {
                    let raw: &RawValue = map.next_value()?;
                    found.limits.extend(raw.get().parse().ok().map(|limit| (self.place(raw), limit)));
                    found.is_plain &= found.limits.len() < 3;
                }
                Key::PromptCache => found.cache_key = serde_json::from_str(map.next_value::<&RawValue>()?.get()).ok(),
                Key::Plain => _ = map.next_value::<IgnoredAny>()?,
                Key::PlainIfUsual => found.is_plain &= is_usual(map.next_value::<&RawValue>()?.get()),
                Key::Other => {
                    found.is_plain = false;
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// What `metadata` says to us. One that is no object says nothing.
fn ours<E: serde::de::Error>(metadata: &str) -> Result<(Option<Vec<String>>, Option<String>), E> {
    if !metadata.starts_with('{') {
        return Ok((None, None));
    }
    let ours: Metadata<'_> = serde_json::from_str(metadata).map_err(|_| {
        E::custom("in `metadata`, `otela_trusted_providers` is a text or a list of texts and `otela_require` is a text")
    })?;
    Ok((ours.otela_trusted_providers.map(Vec::from), ours.otela_require.map(Cow::into_owned)))
}

/// Where in `object`, a JSON object, the value of its field `name` is.
pub(crate) fn value_of(object: &[u8], name: &str) -> Option<Range<usize>> {
    struct Field<'n> {
        name: &'n str,
        base: usize,
    }
    impl<'de> Visitor<'de> for Field<'_> {
        type Value = Option<Range<usize>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some((key, value)) = map.next_entry::<Cow<'de, str>, &RawValue>()? {
                if key == self.name {
                    let from = value.get().as_ptr() as usize - self.base;
                    found = Some(from..from + value.get().len());
                }
            }
            Ok(found)
        }
    }
    let field = Field { name, base: object.as_ptr() as usize };
    serde_json::Deserializer::from_slice(object).deserialize_map(field).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(body: &str) -> Option<String> {
        scan(body.as_bytes()).unwrap().model
    }

    #[test]
    fn p05_only_what_matters_is_looked_at() {
        let body = r#"{"zzz_future":{"a":[1e-7,12345678901234567]},"model":"org\/m:tag","stream":"odd"}"#;
        assert_eq!(model(body).unwrap(), "org/m:tag");
        assert!(!scan(body.as_bytes()).unwrap().stream);
        assert_eq!(model(r#"{"messages":[{"model":"inner"}],"model":"outer"}"#).unwrap(), "outer");
        let deep = format!(r#"{{"x":{}{},"model":"m"}}"#, "[".repeat(5_000), "]".repeat(5_000));
        assert_eq!(model(&deep).unwrap(), "m");
        for none in ["{}", r#"{"model":""}"#, r#"{"model":null}"#, r#"{"messages":[]}"#] {
            assert_eq!(model(none), None, "{none}");
        }
    }

    #[test]
    fn p27_what_is_ambiguous_is_refused() {
        for bad in [
            "",
            "  ",
            "{",
            "[]",
            r#"["m"]"#,
            "\"m\"",
            r#"{"model":7}"#,
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"a"} x"#,
            r#"{"metadata":{"otela_trusted_providers":7}}"#,
            r#"{"metadata":{"otela_trusted_providers":"a","otela_trusted_providers":"b"}}"#,
            r#"{"metadata":{},"metadata":{"otela_trusted_providers":"b"}}"#,
            r#"{"stream":true,"stream":false}"#,
        ] {
            assert!(scan(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(scan(br#"{"model":"a","model":"b"}"#).unwrap_err().field(), Some("model"));
        assert_eq!(scan(br#"{"metadata":{"otela_require":7}}"#).unwrap_err().field(), Some("metadata"));
    }

    #[test]
    fn places_are_those_of_the_values() {
        let body = r#"  { "messages" : [ {"a":1} ] , "stream":true, "stream_options":{"include_usage":false},"max_tokens":7, "prompt_cache_key":"k"}"#;
        let found = scan(body.as_bytes()).unwrap();
        assert!(found.stream && found.is_plain && !found.is_empty);
        assert_eq!(&body[found.messages.clone().unwrap()], r#"[ {"a":1} ]"#);
        assert_eq!(&body[found.stream_options.clone().unwrap()], r#"{"include_usage":false}"#);
        assert_eq!(&body[..found.opens_at], "  {");
        assert_eq!((found.max_tokens(), found.cache_key.as_deref()), (Some(7), Some("k")));
        assert_eq!(&body[found.limits[0].0.clone()], "7");
    }

    #[test]
    fn trust_and_requirements_are_read_from_metadata() {
        let found = |metadata: &str| {
            let found = scan(format!(r#"{{"metadata":{metadata}}}"#).as_bytes()).unwrap();
            (found.trusted, found.require)
        };
        let ids = Some(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(found(r#"{"otela_trusted_providers":"a, b"}"#), (ids.clone(), None));
        assert_eq!(found(r#"{"x":1,"otela_trusted_providers":["a","b"]}"#), (ids, None));
        assert_eq!(found(r#"{"otela_require":"gpu=\u0048100"}"#), (None, Some("gpu=H100".to_owned())));
        assert_eq!((found("{}"), found("7"), found("null")), ((None, None), (None, None), (None, None)));
    }

    #[test]
    fn only_plain_text_could_be_continued() {
        for (body, plain) in [
            (
                r#"{"messages":[],"temperature":0,"n":1,"tools":[],"logprobs":false,"response_format":{"type": "text"}}"#,
                true,
            ),
            (r#"{"n":2}"#, false),
            (r#"{"tools":[{}]}"#, false),
            (r#"{"logprobs":true}"#, false),
            (r#"{"guided_json":{}}"#, false),
            (r#"{"response_format":{"type":"json_object"}}"#, false),
        ] {
            assert_eq!(scan(body.as_bytes()).unwrap().is_plain, plain, "{body}");
        }
    }
}
