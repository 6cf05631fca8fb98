//! Finds in a form what routing needs, wherever in it that stands; the form itself goes on byte for byte.

use bytes::Bytes;
use futures::{executor::block_on, stream};
use multer::{Constraints, Multipart, SizeLimit};
use std::convert::Infallible;

/// The form is read in steps of this size, so that reading it holds little of it a second time.
const STEP_BYTES: usize = 64 * 1024;
/// No model has a longer name.
const FIELD_BYTES_MAX: u64 = 4096;

/// What a form says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
}

/// Why a form cannot be routed by. Each text is the message to the client.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnreadableForm {
    #[error("The Content-Type names no boundary.")]
    NoBoundary,
    #[error("The form is not valid: {0}.")]
    Invalid(String),
    #[error("The form has the part `{0}` twice.")]
    Twice(&'static str),
}

/// What a form says whose Content-Type is `kind`.
pub(crate) fn read(kind: &str, body: &Bytes) -> Result<Form, UnreadableForm> {
    // All of it is there, so this never waits.
    block_on(parts(kind, body))
}

async fn parts(kind: &str, body: &Bytes) -> Result<Form, UnreadableForm> {
    let boundary = multer::parse_boundary(kind).map_err(|_| UnreadableForm::NoBoundary)?;
    let steps: Vec<_> = (0..body.len())
        .step_by(STEP_BYTES)
        .map(|from| Ok::<_, Infallible>(body.slice(from..body.len().min(from + STEP_BYTES))))
        .collect();
    let limits = SizeLimit::new().for_field("model", FIELD_BYTES_MAX).for_field("stream", FIELD_BYTES_MAX);
    let mut parts = Multipart::with_constraints(stream::iter(steps), boundary, Constraints::new().size_limit(limits));
    let invalid = |error: multer::Error| UnreadableForm::Invalid(error.to_string());
    let (mut model, mut stream) = (None, None);
    while let Some(part) = parts.next_field().await.map_err(invalid)? {
        let (name, field) = match part.name() {
            Some("model") => ("model", &mut model),
            Some("stream") => ("stream", &mut stream),
            _ => continue,
        };
        let text = part.text().await.map_err(invalid)?;
        if field.replace(text).is_some() {
            return Err(UnreadableForm::Twice(name));
        }
    }
    let stream = stream.is_some_and(|text: String| matches!(text.trim(), "true" | "True" | "1"));
    Ok(Form { model: model.map(|text: String| text.trim().to_owned()).filter(|text| !text.is_empty()), stream })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(parts: &[(&str, &str)]) -> Bytes {
        let part = |(name, text): &(&str, &str)| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
        };
        (parts.iter().map(part).collect::<String>() + "--b--\r\n").into()
    }

    const KIND: &str = "multipart/form-data; boundary=b";

    #[test]
    fn p08_the_model_is_found_behind_a_file_that_looks_like_the_end() {
        let file = format!("\r\n-b--\r\n{}b--\r\n", "x".repeat(200_000));
        let body = form(&[("file", &file), ("model", "org/whisper"), ("stream", "true")]);
        let found = read(KIND, &body).unwrap();
        assert_eq!(found, Form { model: Some("org/whisper".into()), stream: true });
        assert_eq!(read(KIND, &form(&[("file", "x")])).unwrap(), Form::default());
    }

    #[test]
    fn p27_two_models_or_none_that_can_be_read_are_refused() {
        let twice = form(&[("model", "a"), ("model", "b")]);
        assert_eq!(read(KIND, &twice), Err(UnreadableForm::Twice("model")));
        assert_eq!(read("multipart/form-data", &twice), Err(UnreadableForm::NoBoundary));
        let long = form(&[("model", &"m".repeat(5_000))]);
        assert!(matches!(read(KIND, &long), Err(UnreadableForm::Invalid(_))));
        let cut = form(&[("model", "a")]).slice(..40);
        assert!(matches!(read(KIND, &cut), Err(UnreadableForm::Invalid(_))));
    }
}
