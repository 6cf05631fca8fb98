//! AMD's cards, from `rocm-smi`.

use super::{Found, ToolError, Tools, first_words, run, told_nothing, visible_of};
use serde_json::{Map, Value};

const QUERY: [&str; 6] = ["--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--showid", "--json"];

pub(super) async fn detect(tools: &Tools, visible: Option<&str>) -> Found {
    let tool = &tools.rocm_smi;
    match run(tool, &QUERY, tools.limit).await.and_then(|text| parse(&text)) {
        Ok((dies, driver)) => found(&dies, driver, visible),
        Err(error) => told_nothing(tool, &error),
    }
}

/// What the tool calls a card: for the MI250 family, one of two dies on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Die {
    kind: String,
    name: String,
    memory_bytes: Option<u64>,
}

pub(super) fn parse(text: &str) -> Result<(Vec<Die>, Option<String>), ToolError> {
    let garbage = || ToolError::Garbage(first_words(text));
    // Warnings come before the object.
    let object = text.find('{').map(|start| &text[start..]).ok_or_else(garbage)?;
    let all: Map<String, Value> = serde_json::from_str(object).map_err(|_| garbage())?;
    let mut dies: Vec<(usize, Die)> = Vec::new();
    for (key, fields) in &all {
        if let Some(index) = key.strip_prefix("card").and_then(|index| index.parse().ok()) {
            dies.push((index, die(fields).ok_or_else(garbage)?));
        }
    }
    dies.sort_by_key(|(index, _)| *index);
    let driver = all.get("system").and_then(|system| field(system, &["driver version"]));
    Ok((dies.into_iter().map(|(_, die)| die).collect(), driver))
}

fn die(fields: &Value) -> Option<Die> {
    let name = field(fields, &["card series", "device name", "card model", "card sku"])?;
    let memory_bytes = field(fields, &["vram total memory (b)"]).and_then(|bytes| bytes.parse().ok());
    let everything: String =
        fields.as_object()?.values().filter_map(Value::as_str).map(|text| text.to_uppercase() + " ").collect();
    Some(Die { kind: kind(&everything, &name), name, memory_bytes })
}

/// The first of these fields that is filled; releases spell them differently.
fn field(fields: &Value, names: &[&str]) -> Option<String> {
    let fields = fields.as_object()?;
    names.iter().find_map(|name| {
        let (_, value) = fields.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
        let text = value.as_str()?.trim();
        (!text.is_empty() && text != "N/A").then(|| text.to_owned())
    })
}

/// Instinct cards by their number, also where only the PCI device id tells; others by their name.
fn kind(everything: &str, name: &str) -> String {
    const BY_ID: [(&str, &str); 4] =
        [("0X7408", "MI250X"), ("0X740C", "MI250X"), ("0X740F", "MI210"), ("0X74A1", "MI300X")];
    let mut words = everything.split(|c: char| !c.is_ascii_alphanumeric());
    let instinct =
        |word: &&str| word.strip_prefix("MI").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    match words.find(instinct) {
        // The family's name, reported by some drivers for every card of it.
        Some("MI200") | None => {}
        Some(word) => return word.to_owned(),
    }
    if let Some((_, kind)) = BY_ID.iter().find(|(id, _)| everything.contains(id)) {
        return (*kind).to_owned();
    }
    if everything.contains("MI200") {
        return if everything.contains("MCM") { "MI250X".to_owned() } else { "MI210".to_owned() };
    }
    name.split_whitespace().filter(|word| !["AMD", "Radeon", "Graphics"].contains(word)).collect::<String>()
}

pub(super) fn found(dies: &[Die], driver: Option<String>, visible: Option<&str>) -> Found {
    let mut found = Found { driver: driver.filter(|_| !dies.is_empty()), ..Found::default() };
    let refs: Vec<&Die> = dies.iter().collect();
    let seen = visible_of(&refs, visible, |index, _, word| word.parse() == Ok(index));
    let mut half: Option<&Die> = None;
    for die in seen {
        if !die.kind.starts_with("MI250") {
            found.add(die.kind.clone(), die.name.clone(), die.memory_bytes);
            continue;
        }
        match half.take() {
            Some(first) if first == die => {
                found.add(die.kind.clone(), die.name.clone(), die.memory_bytes.map(|bytes| bytes.saturating_mul(2)));
            }
            _ => half = Some(die),
        }
    }
    // A job may have been given one die only.
    if let Some(die) = half {
        found.add(die.kind.clone(), die.name.clone(), die.memory_bytes);
    }
    found
}
