//! Query parameters: split, and refused where they are not known.

use axum::{extract::Query, http::Uri};

/// A wrong parameter is repeated to whoever sent it, up to this many characters.
const REPEATED_CHARS_MAX: usize = 100;

/// A parameter that cannot be taken. Its text is one line: what, where, what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct BadParameter {
    pub(super) name: String,
    message: String,
}

impl BadParameter {
    /// `value` of `name` is not among what is `allowed`.
    pub(super) fn value(name: &str, value: &str, allowed: &str) -> Self {
        let message = format!("{name}={} is not understood: {allowed}.", shortened(value));
        Self { name: name.to_owned(), message }
    }
}

/// The parameters of one request; all of them are known.
#[derive(Debug)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Takes the query of `uri`, if it has none but the `known` parameters.
    pub(super) fn parse(uri: &Uri, known: &[&str]) -> Result<Self, BadParameter> {
        let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
            return Err(BadParameter { name: String::new(), message: "The query cannot be decoded.".to_owned() });
        };
        match pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(Self(pairs)),
            Some((name, _)) => {
                let name = shortened(name);
                let message = format!("There is no parameter `{name}` here: known are {}.", known.join(", "));
                Err(BadParameter { name, message })
            }
        }
    }

    /// All values of `name`: those of a list with commas, and those of a repeated parameter, are equals.
    pub(super) fn values(&self, name: &str) -> Result<Vec<&str>, BadParameter> {
        let given = self.0.iter().filter(|(given, _)| given == name);
        let values: Vec<_> = given.flat_map(|(_, value)| value.split(',')).map(str::trim).collect();
        if values.contains(&"") {
            return Err(BadParameter::value(name, "", "give a value, or leave the parameter out"));
        }
        Ok(values)
    }

    /// The value of `name`, which may be given once.
    pub(super) fn single(&self, name: &str) -> Result<Option<&str>, BadParameter> {
        let mut given = self.0.iter().filter(|(given, _)| given == name).map(|(_, value)| value.as_str());
        match (given.next(), given.next()) {
            (_, Some(second)) => Err(BadParameter::value(name, second, "it was given before, and may be given once")),
            (first, None) => Ok(first),
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(REPEATED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Parameters, BadParameter> {
        Parameters::parse(&format!("/nodes?{query}").parse().unwrap(), &["state", "limit"])
    }

    #[test]
    fn commas_and_repetition_are_the_same() {
        for query in ["state=join,down", "state=join&state=down", "state=join%2Cdown", "state=join,+down"] {
            assert_eq!(parse(query).unwrap().values("state").unwrap(), ["join", "down"], "{query}");
        }
        assert!(parse("").unwrap().values("state").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let unknown = parse("sate=join").unwrap_err();
        assert_eq!(unknown.name, "sate");
        assert_eq!(unknown.to_string(), "There is no parameter `sate` here: known are state, limit.");
        for empty in ["state=", "state", "state=join,", "state=,"] {
            assert!(parse(empty).unwrap().values("state").is_err(), "{empty}");
        }
        let twice = parse("limit=1&limit=2").unwrap();
        let twice = twice.single("limit").unwrap_err();
        assert!(twice.to_string().starts_with("limit=2 is not understood"), "{twice}");
        assert_eq!(parse("limit=1").unwrap().single("limit").unwrap(), Some("1"));
    }

    #[test]
    fn what_is_repeated_is_short() {
        let long = "x".repeat(10_000);
        assert!(parse(&format!("{long}=1")).unwrap_err().to_string().len() < 200);
        assert!(BadParameter::value("state", &long, "no").to_string().len() < 200);
    }
}
