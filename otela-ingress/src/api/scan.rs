//! Finds in a body what routing needs, in one pass and without building the document. The fuzz target `scan` takes
//! this file as it is, so it names nothing else of the crate.

use serde::Deserialize;
use std::borrow::Cow;

/// The fields that routing needs. Naming one of them twice is an error: which of the two an engine would take is
/// anybody's guess.
#[derive(Debug, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    model: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Why no model can be read from a body. Each text is the message to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("The request has no body; a JSON object with `model` is needed.")]
    Empty,
    #[error("The request body is not valid: a JSON object is needed.")]
    NotAnObject,
    #[error("The request body is not valid: {0}.")]
    Invalid(serde_json::Error),
    #[error("The request names no `model`.")]
    NoModel,
}

impl Unreadable {
    /// Whether the field `model` is what is wrong.
    pub(crate) fn is_about_model(&self) -> bool {
        match self {
            Self::Empty | Self::NotAnObject => false,
            Self::Invalid(error) => error.to_string().contains("`model`"),
            Self::NoModel => true,
        }
    }
}

/// The model that a JSON body names.
pub(crate) fn model(body: &[u8]) -> Result<String, Unreadable> {
    if body.trim_ascii().is_empty() {
        return Err(Unreadable::Empty);
    }
    // An array would be taken for the fields in their order.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(Unreadable::NotAnObject);
    }
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(Unreadable::Invalid)?;
    match fields.model {
        Some(Text(model)) if !model.is_empty() => Ok(model.into_owned()),
        _ => Err(Unreadable::NoModel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p05_only_the_model_is_looked_at() {
        let body = r#"{"zzz_future":{"a":[1e-7,12345678901234567]},"model":"org\/m:tag","stream":"odd"}"#;
        assert_eq!(model(body.as_bytes()).unwrap(), "org/m:tag");
        assert_eq!(model(br#"{"messages":[{"model":"inner"}],"model":"outer"}"#).unwrap(), "outer");
        let deep = format!(r#"{{"x":{}{},"model":"m"}}"#, "[".repeat(5_000), "]".repeat(5_000));
        assert_eq!(model(deep.as_bytes()).unwrap(), "m");
    }

    #[test]
    fn p27_what_is_ambiguous_or_missing_is_refused() {
        for bad in [
            "",
            "  ",
            "{",
            "[]",
            r#"["m"]"#,
            "\"m\"",
            "{}",
            r#"{"model":""}"#,
            r#"{"model":null}"#,
            r#"{"model":7}"#,
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"a"} x"#,
        ] {
            assert!(model(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
