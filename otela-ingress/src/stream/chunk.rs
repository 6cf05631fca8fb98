//! What one event of a chat's or a completion's stream says, and how it is rewritten when an answer is continued.

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// What an engine says of an answer's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Usage {
    /// Responses and Anthropic messages call them input tokens.
    #[serde(default, alias = "input_tokens")]
    pub(crate) prompt_tokens: u64,
    #[serde(default, alias = "output_tokens")]
    pub(crate) completion_tokens: u64,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// A comment, a field that is not `data`, or something that is not understood.
    Nothing,
    /// `[DONE]`.
    Done,
    /// A chunk of an answer.
    Chunk(Chunk),
}

/// A chunk of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Text that is added.
    pub(crate) text: String,
    /// Why the answer ends here.
    pub(crate) finish: Option<String>,
    /// Tokens so far.
    pub(crate) usage: Option<Usage>,
    /// Whether it is about usage only.
    pub(crate) is_usage_only: bool,
    /// Whether it only opens the answer: a role and no text.
    pub(crate) is_opening: bool,
    /// Whether there is more in it than plain text: thoughts, calls of tools, a second choice.
    pub(crate) is_more: bool,
    pub(crate) id: Option<String>,
    pub(crate) created: Option<u64>,
}

#[derive(Deserialize)]
struct RawChunk<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(default)]
    created: Option<u64>,
    #[serde(borrow, default)]
    choices: Option<Vec<RawChoice<'a>>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct RawChoice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    delta: Option<RawDelta<'a>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Default)]
struct RawDelta<'a> {
    content: Option<Cow<'a, str>>,
    has_role: bool,
    has_more: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for RawDelta<'a> {
    fn deserialize<D: Deserializer<'de>>(read: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = RawDelta<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a delta")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawDelta<'de>, A::Error> {
                let mut delta = RawDelta::default();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    match &*key {
                        "content" => {
                            let raw: &RawValue = map.next_value()?;
                            match serde_json::from_str(raw.get()) {
                                Ok(text) => delta.content = text,
                                Err(_) => delta.has_more = true,
                            }
                        }
                        "role" => {
                            delta.has_role = true;
                            map.next_value::<IgnoredAny>()?;
                        }
                        _ => {
                            let raw: &RawValue = map.next_value()?;
                            delta.has_more |= !matches!(raw.get(), "null" | "[]" | "\"\"");
                        }
                    }
                }
                Ok(delta)
            }
        }
        read.deserialize_map(Fields)
    }
}

/// What `event` says.
pub(crate) fn said(event: &[u8]) -> Said {
    let Some(data) = data(event) else { return Said::Nothing };
    if data.trim_ascii() == b"[DONE]" {
        return Said::Done;
    }
    let Ok(raw) = serde_json::from_slice::<RawChunk<'_>>(&data) else { return Said::Nothing };
    let mut chunk = Chunk {
        id: raw.id.map(Cow::into_owned),
        created: raw.created,
        usage: raw.usage,
        is_usage_only: raw.usage.is_some() && raw.choices.as_ref().is_none_or(Vec::is_empty),
        ..Chunk::default()
    };
    for choice in raw.choices.unwrap_or_default() {
        let delta = choice.delta.unwrap_or_default();
        chunk.is_more |= choice.index > 0 || delta.has_more;
        chunk.is_opening |= delta.has_role;
        chunk.text.push_str(&delta.content.or(choice.text).unwrap_or_default());
        chunk.finish = chunk.finish.or(choice.finish_reason.map(Cow::into_owned));
    }
    chunk.is_opening &= chunk.text.is_empty() && chunk.finish.is_none();
    Said::Chunk(chunk)
}

/// The data of an event: its `data` lines, joined as the specification of server-sent events says.
pub(crate) fn data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    let mut data = lines.filter_map(|line| {
        let value = line.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    });
    let first = data.next()?;
    let Some(second) = data.next() else { return Some(Cow::Borrowed(first)) };
    let mut all = first.to_vec();
    for line in std::iter::once(second).chain(data) {
        all.push(b'\n');
        all.extend_from_slice(line);
    }
    Some(Cow::Owned(all))
}

/// What is put in the place of fields of a chunk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rewrite {
    pub(crate) id: Option<String>,
    pub(crate) created: Option<u64>,
    pub(crate) usage: Option<Usage>,
}

/// The event with the fields replaced, and every other value as it was. `None` if it holds no object.
pub(crate) fn rewritten(event: &[u8], rewrite: &Rewrite) -> Option<Bytes> {
    let data = data(event)?;
    let fields: Fields<'_> = serde_json::from_slice(&data).ok()?;
    let mut out = String::with_capacity(data.len() + 64);
    out.push_str("data: {");
    for (n, (key, value)) in fields.0.iter().enumerate() {
        let id = rewrite.id.as_deref().filter(|_| key == "id").map(|id| serde_json::Value::from(id).to_string());
        let created = rewrite.created.filter(|_| key == "created").map(|created| created.to_string());
        let usage = rewrite.usage.filter(|_| key == "usage" && value.get() != "null");
        let usage = usage.map(|usage| with_usage(value.get(), usage));
        // A line's end within a value is white space: an escaped one stands in a string.
        let as_it_was = || value.get().replace(['\n', '\r'], " ");
        let value = id.or(created).or(usage).unwrap_or_else(as_it_was);
        let comma = if n == 0 { "" } else { "," };
        out.push_str(comma);
        out.push_str(&serde_json::Value::from(key.as_str()).to_string());
        out.push(':');
        out.push_str(&value);
    }
    out.push_str("}\n\n");
    Some(out.into())
}

/// The event without the first `bytes` of its text.
pub(crate) fn without_prefix(event: &[u8], bytes: usize) -> Option<Bytes> {
    let mut chunk: serde_json::Value = serde_json::from_slice(&data(event)?).ok()?;
    let choice = chunk.get_mut("choices")?.get_mut(0)?;
    let text = match choice.get_mut("delta") {
        Some(delta) => delta.get_mut("content")?,
        None => choice.get_mut("text")?,
    };
    *text = text.as_str()?.get(bytes..)?.into();
    Some(format!("data: {chunk}\n\n").into())
}

/// The engine's own account, its numbers replaced.
fn with_usage(account: &str, usage: Usage) -> String {
    let mut account: serde_json::Map<_, _> = serde_json::from_str(account).unwrap_or_default();
    for (name, other, tokens) in [
        ("prompt_tokens", "input_tokens", usage.prompt_tokens),
        ("completion_tokens", "output_tokens", usage.completion_tokens),
    ] {
        let name = if account.contains_key(other) { other } else { name };
        account.insert(name.to_owned(), tokens.into());
    }
    account.insert("total_tokens".into(), (usage.prompt_tokens + usage.completion_tokens).into());
    serde_json::Value::Object(account).to_string()
}

/// The fields of an object in their order.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(read: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        read.deserialize_map(Each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(data: &str) -> Chunk {
        match said(format!("data: {data}\n\n").as_bytes()) {
            Said::Chunk(chunk) => chunk,
            other => panic!("{data}: {other:?}"),
        }
    }

    #[test]
    fn chunks_of_chats_and_completions_are_understood() {
        let opening = chunk(
            r#"{"id":"c1","created":7,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        );
        assert!(opening.is_opening && opening.id.as_deref() == Some("c1") && opening.created == Some(7));
        let text = chunk(
            r#"{"choices":[{"index":0,"delta":{"content":"h\u00e9 \"x\"","reasoning_content":null}}],"usage":null}"#,
        );
        assert_eq!((text.text.as_str(), text.is_more, text.is_opening), ("hé \"x\"", false, false));
        let end = chunk(r#"{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}"#);
        assert_eq!(end.finish.as_deref(), Some("stop"));
        let usage = chunk(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}"#);
        assert!(usage.is_usage_only && usage.usage.unwrap().completion_tokens == 5);
        assert_eq!(chunk(r#"{"choices":[{"index":0,"text":"abc","finish_reason":"length"}]}"#).text, "abc");
        for more in [
            r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text"}]}}]}"#,
        ] {
            assert!(chunk(more).is_more, "{more}");
        }
    }

    #[test]
    fn events_are_read_as_the_specification_says() {
        assert_eq!(said(b"data: [DONE]\n\n"), Said::Done);
        assert_eq!(said(b"data:[DONE]\r\n\r\n"), Said::Done);
        assert_eq!(said(b": comment\n\n"), Said::Nothing);
        assert_eq!(said(b"event: x\nid: 1\n\n"), Said::Nothing);
        assert_eq!(said(b"data: not json\n\n"), Said::Nothing);
        assert_eq!(data(b"event: a\ndata: {\"a\":\ndata:1}\n\n").unwrap().as_ref(), b"{\"a\":\n1}");
    }

    #[test]
    fn only_the_named_fields_are_rewritten() {
        let event = br#"data: {"id":"c2","object":"x","created":9,"big":12345678901234567,"tiny":1e-7,"choices":[{"delta":{"content":"\u00e9"}}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4}}}

"#;
        let usage = Usage { prompt_tokens: 5, completion_tokens: 6 };
        let rewrite = Rewrite { id: Some("c\"1".into()), created: Some(7), usage: Some(usage) };
        let out = rewritten(event, &rewrite).unwrap();
        let expected = r#"data: {"id":"c\"1","object":"x","created":7,"big":12345678901234567,"tiny":1e-7,"choices":[{"delta":{"content":"\u00e9"}}],"usage":{"completion_tokens":6,"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4},"total_tokens":11}}

"#;
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
        assert!(rewritten(b"data: [DONE]\n\n", &rewrite).is_none());
        let lines = rewritten(b"data: {\"x\":[1,\ndata: 2]}\n\n", &rewrite).unwrap();
        assert_eq!(&lines[..], b"data: {\"x\":[1, 2]}\n\n");
        let null = rewritten(b"data: {\"usage\":null}\n\n", &rewrite).unwrap();
        assert_eq!(&null[..], b"data: {\"usage\":null}\n\n");
    }
}
