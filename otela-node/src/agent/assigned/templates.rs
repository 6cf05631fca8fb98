//! How a provider lets engines be started on its node: command lines of its own, in which only a few words are filled in.

use crate::engine::free_port;
use otela_proto::assignment::{OfferedTemplate, Work};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

/// A launch template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchTemplate {
    /// Its name, by which schedulers ask for it.
    pub name: String,
    /// The engine's words, with names of what is filled in in braces.
    command: Vec<String>,
    /// Models that it may start, as in [`OfferedTemplate::models`].
    models: Vec<String>,
}

/// A template as a file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    command: Vec<String>,
    #[serde(default)]
    models: Vec<String>,
}

/// A file of templates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplatesError {
    /// It cannot be read.
    #[error("cannot read the launch templates {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("launch templates {}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong, on one line.
        what: String,
    },
}

/// What stands in braces.
const WORDS: [&str; 4] = ["model", "tensor_parallel", "data_parallel", "port"];

impl LaunchTemplate {
    /// Reads a TOML file with a table for each template: `[NAME]`, `command = [...]`, and `models = [...]` if it may not
    /// start any.
    ///
    /// # Errors
    /// [`TemplatesError`], with what to do.
    pub fn load(path: &Path) -> Result<Vec<Self>, TemplatesError> {
        let unreadable = |source| TemplatesError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Self::read(&text).map_err(|what| TemplatesError::Wrong { path: path.to_owned(), what })
    }

    fn read(text: &str) -> Result<Vec<Self>, String> {
        let written: BTreeMap<String, Written> = toml::from_str(text).map_err(|error| one_line(&error, text))?;
        if written.is_empty() {
            return Err("it has none: [vllm] with command = [\"vllm\", \"serve\", \"{model}\"] is one".to_owned());
        }
        let templates = written.into_iter().map(|(name, Written { command, models })| {
            let template = Self { name, command, models };
            template.check().map(|()| template)
        });
        templates.collect()
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let sample = Work { template: name.clone(), model: "m".to_owned(), tensor_parallel: 1, data_parallel: 1 };
        if sample.check().is_err() {
            return Err(format!("[{name}]: a name is letters, digits and . _ -"));
        }
        if self.command.first().is_none_or(String::is_empty) {
            return Err(format!("[{name}]: command is empty; its first word is the program"));
        }
        for word in &self.command {
            let mut rest = word.as_str();
            while let Some((_, after)) = rest.split_once('{') {
                let Some((inside, after)) = after.split_once('}') else { break };
                // JSON on a command line has braces too.
                let is_word = !inside.is_empty() && inside.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                if is_word && !WORDS.contains(&inside) {
                    return Err(format!("[{name}]: {{{inside}}} is unknown; there are {{{}}}", WORDS.join("}, {")));
                }
                rest = after;
            }
        }
        if !self.command.iter().any(|word| word.contains("{model}")) && self.models.len() != 1 {
            return Err(format!("[{name}]: no word has {{model}}; if it starts one model only, name that in models"));
        }
        Ok(())
    }

    /// What others are told of it.
    #[must_use]
    pub fn offered(&self) -> OfferedTemplate {
        OfferedTemplate { name: self.name.clone(), models: self.models.clone() }
    }

    /// The command line for `work`, whose names have been checked. A free port is chosen, if a word asks for one.
    ///
    /// # Errors
    /// Those of looking for a port.
    pub(super) fn command(&self, work: &Work) -> io::Result<Vec<OsString>> {
        let port = if self.command.iter().any(|word| word.contains("{port}")) { free_port()? } else { 0 };
        let values =
            [work.model.clone(), work.tensor_parallel.to_string(), work.data_parallel.to_string(), port.to_string()];
        Ok(self.command.iter().map(|word| filled(word, &values).into()).collect())
    }
}

/// Fills in all words at once, so that nothing in a value is filled in again.
fn filled(word: &str, values: &[String; 4]) -> String {
    let (mut text, mut rest) = (String::new(), word);
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = WORDS.iter().zip(values).find_map(|(name, value)| {
            let after = rest.strip_prefix('{')?.strip_prefix(name)?.strip_prefix('}')?;
            Some((value, after))
        });
        match found {
            Some((value, after)) => {
                text.push_str(value);
                rest = after;
            }
            None => {
                text.push('{');
                rest = &rest[1..];
            }
        }
    }
    text + rest
}

fn one_line(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    line.map_or(message.clone(), |line| format!("line {line}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        Work { template: "a".into(), model: "Qwen/{port}".into(), tensor_parallel: 2, data_parallel: 4 }
    }

    #[test]
    fn words_are_filled_in_once_and_everything_else_stays() {
        let text = r#"
            [a]
            command = ["x", "--model={model}", "-tp", "{tensor_parallel}{data_parallel}", '{"json": {}}', "{", "$(id)"]
        "#;
        let templates = LaunchTemplate::read(text).unwrap();
        let words = templates[0].command(&work()).unwrap();
        assert_eq!(words, ["x", "--model=Qwen/{port}", "-tp", "24", r#"{"json": {}}"#, "{", "$(id)"]);
    }

    #[test]
    fn a_port_is_free_when_it_is_chosen() {
        let templates = LaunchTemplate::read("[a]\ncommand = [\"x\", \"{model}\", \"{port}\"]").unwrap();
        let words = templates[0].command(&work()).unwrap();
        let port: u16 = words[2].to_str().unwrap().parse().unwrap();
        assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_ok());
    }

    #[test]
    fn what_cannot_be_used_is_told_on_one_line() {
        for (text, what) in [
            ("", "it has none"),
            ("[a]\ncommand = []", "[a]: command is empty"),
            ("[a]\ncommand = [\"x\"]", "[a]: no word has {model}"),
            ("[a]\ncommand = [\"x\", \"{modl}\"]", "[a]: {modl} is unknown; there are {model}, {tensor_parallel}"),
            ("[\"a b\"]\ncommand = [\"x\", \"{model}\"]", "[a b]: a name is letters"),
            ("[a]\ncomand = [\"x\"]", "line 2: unknown field `comand`"),
            ("[a]\ncommand = \"x\"", "line 2: invalid type"),
        ] {
            let said = LaunchTemplate::read(text).unwrap_err();
            assert!(said.starts_with(what) && !said.contains('\n'), "{text:?}: {said}");
        }
        assert!(LaunchTemplate::read("[a]\ncommand = [\"x\"]\nmodels = [\"m\"]").is_ok());
        let missing = LaunchTemplate::load(Path::new("/nowhere")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read the launch templates /nowhere");
    }
}
