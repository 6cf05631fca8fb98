//! Reading users' files.

use serde::de::DeserializeOwned;

/// What a TOML text says, or what is wrong with it and in which line, on one line.
pub(crate) fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message().lines().collect::<Vec<_>>().join(" "))
    })
}
