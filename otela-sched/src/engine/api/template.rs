//! The chat template: messages to the text that the model would see.

use super::error::ApiError;
use crate::engine::tokens;
use serde::Deserialize;
use serde_json::Value;

/// One message of a chat.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Message {
    pub(super) role: String,
    content: Option<Content>,
    tool_calls: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Clone, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl Message {
    pub(super) fn new(role: &str, text: String) -> Self {
        Self { role: role.to_owned(), content: Some(Content::Text(text)), tool_calls: None }
    }

    /// Its text. Parts that are none, such as images, stand for themselves by their kind.
    pub(super) fn text(&self) -> String {
        match &self.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => {
                parts.iter().map(|part| part.text.clone().unwrap_or_else(|| format!("<|{}|>", part.kind))).collect()
            }
        }
    }
}

/// What the model goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// All that stands before the answer.
    pub(crate) context: String,
    /// The part of the answer that is already said.
    pub(crate) open: String,
}

impl Prompt {
    pub(super) fn tokens(&self) -> u32 {
        tokens::count(&self.context).saturating_add(tokens::count(&self.open))
    }

    /// The whole text.
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.context, self.open)
    }
}

/// How a chat ends in its prompt.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Ending {
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
}

impl Ending {
    pub(super) const ANSWER: Self = Self { add_generation_prompt: None, continue_final_message: None };

    /// The answer begins with the open last message, which the prompt ends in.
    pub(super) fn continues(self) -> bool {
        self.continue_final_message.unwrap_or(false)
    }
}

/// Puts a chat into text. A continued message stands open at the end, so that context and answer are the same
/// whether the answer is made in one go or in two.
pub(super) fn render(messages: &[Message], ending: Ending) -> Result<Prompt, ApiError> {
    let Some((last, before)) = messages.split_last() else {
        return Err(ApiError::validation("messages must not be empty", Some("messages")));
    };
    let generate = ending.add_generation_prompt.unwrap_or(true);
    if ending.continues() && generate {
        return Err(ApiError::bad(
            "continue_final_message needs add_generation_prompt to be false: the answer either continues the last \
             message or begins a new one",
            None,
        ));
    }
    let mut context: String = before.iter().map(closed).collect();
    if ending.continues() {
        context.push_str(&header(&last.role));
        return Ok(Prompt { context, open: last.text() });
    }
    context.push_str(&closed(last));
    if generate {
        context.push_str(&header("assistant"));
    }
    Ok(Prompt { context, open: String::new() })
}

fn header(role: &str) -> String {
    format!("<|{role}|>\n")
}

fn closed(message: &Message) -> String {
    let calls = message.tool_calls.as_ref().map(Value::to_string).unwrap_or_default();
    format!("{}{}{calls}<|end|>\n", header(&message.role), message.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(json: &str) -> Vec<Message> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_continued_message_stands_where_the_answer_would() {
        let asked = messages(r#"[{"role":"user","content":"hi"}]"#);
        let continued = messages(r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"The r"}]"#);
        let fresh = render(&asked, Ending::ANSWER).unwrap();
        let ending = Ending { add_generation_prompt: Some(false), continue_final_message: Some(true) };
        let again = render(&continued, ending).unwrap();
        assert_eq!(fresh.context, again.context);
        assert_eq!((fresh.open.as_str(), again.open.as_str()), ("", "The r"));
        let both = Ending { add_generation_prompt: None, continue_final_message: Some(true) };
        assert!(render(&continued, both).is_err());
    }

    #[test]
    fn content_may_be_parts_or_missing() {
        let parts = messages(
            r#"[{"role":"user","content":[{"type":"text","text":"see "},{"type":"image_url","image_url":{"url":"x"}}]},
                {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]"#,
        );
        assert_eq!(parts[0].text(), "see <|image_url|>");
        let prompt = render(&parts, Ending::ANSWER).unwrap();
        assert_eq!(
            prompt.text(),
            "<|user|>\nsee <|image_url|><|end|>\n<|assistant|>\n[{\"id\":\"1\"}]<|end|>\n<|assistant|>\n"
        );
    }
}
