//! NVIDIA's cards and their MIG slices, from `nvidia-smi`.

use super::{Found, ToolError, Tools, first_words, run, told_nothing, visible_of};

const QUERY: [&str; 2] = ["--query-gpu=index,uuid,memory.total,driver_version,name", "--format=csv,noheader,nounits"];
const MIB: u64 = 1024 * 1024;

/// Kinds that are sold with different memories, so that the memory is part of what they are.
const SIZED: [&str; 4] = ["A100", "V100", "P100", "A800"];
/// Words of a card's name that say how it is plugged in or sold, not what it computes.
const NOISE: [&str; 24] = [
    "NVIDIA",
    "TESLA",
    "QUADRO",
    "GEFORCE",
    "GRAPHICS",
    "DEVICE",
    "GPU",
    "PCIE",
    "SXM",
    "SXM2",
    "SXM3",
    "SXM4",
    "SXM5",
    "NVL",
    "HBM2",
    "HBM2E",
    "HBM3",
    "HBM3E",
    "GENERATION",
    "LAPTOP",
    "SERVER",
    "WORKSTATION",
    "EDITION",
    "BLACKWELL",
];

pub(super) async fn detect(tools: &Tools, visible: Option<&str>) -> Found {
    let tool = &tools.nvidia_smi;
    let queried = run(tool, &QUERY, tools.limit).await;
    let cards = match queried.and_then(|text| parse(&text)) {
        Ok(cards) => cards,
        Err(error) => return told_nothing(tool, &error),
    };
    // Only this listing knows MIG slices; without them it adds nothing, so its failure costs nothing.
    let listing = run(tool, &["-L"], tools.limit).await.unwrap_or_default();
    found(&cards, &slices(&listing), visible)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    uuid: String,
    name: String,
    memory_bytes: Option<u64>,
    driver: String,
}

/// A MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    card: String,
    profile: String,
    uuid: String,
}

pub(super) fn parse(text: &str) -> Result<Vec<Card>, ToolError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let cards: Option<Vec<Card>> = lines.map(card).collect();
    cards.ok_or_else(|| ToolError::Garbage(first_words(text)))
}

fn card(line: &str) -> Option<Card> {
    // The name comes last because it may hold anything.
    let mut fields = line.splitn(5, ',').map(str::trim);
    let _index: usize = fields.next()?.parse().ok()?;
    let uuid = fields.next()?.to_owned();
    // Cards that share the processor's memory say `[N/A]`.
    let memory_bytes = fields.next()?.parse().ok().map(|mib: u64| mib.saturating_mul(MIB));
    let driver = fields.next()?.to_owned();
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    Some(Card { uuid, name, memory_bytes, driver })
}

/// `nvidia-smi -L` prints each card, and indented below it its slices.
pub(super) fn slices(text: &str) -> Vec<Slice> {
    let mut card = "";
    let mut slices = Vec::new();
    for line in text.lines() {
        let Some(uuid) = line.rsplit_once("UUID: ").map(|(_, rest)| rest.trim_end().trim_end_matches(')')) else {
            continue;
        };
        let mut words = line.split_whitespace();
        match words.next() {
            Some("GPU") => card = uuid,
            Some("MIG") => {
                let profile = words.next().unwrap_or_default().to_owned();
                slices.push(Slice { card: card.to_owned(), profile, uuid: uuid.to_owned() });
            }
            _ => {}
        }
    }
    slices
}

pub(super) fn found(cards: &[Card], slices: &[Slice], visible: Option<&str>) -> Found {
    let mut found = Found { driver: cards.first().map(|card| card.driver.clone()), ..Found::default() };
    let cut = |card: &Card| slices.iter().any(|slice| slice.card == card.uuid);
    // What CUDA counts: whole cards and slices, a cut card only through its slices.
    let mut devices = Vec::new();
    for card in cards {
        if !cut(card) {
            devices.push((card, None));
        }
        devices.extend(slices.iter().filter(|slice| slice.card == card.uuid).map(|slice| (card, Some(slice))));
    }
    let is = |index: usize, (card, slice): &(&Card, Option<&Slice>), word: &str| {
        let uuid = slice.map_or(&card.uuid, |slice| &slice.uuid);
        word.parse() == Ok(index) || (word.contains('-') && uuid.starts_with(word))
    };
    for (card, slice) in visible_of(&devices, visible, is) {
        match slice {
            None => found.add(kind(&card.name, card.memory_bytes), card.name.clone(), card.memory_bytes),
            Some(Slice { profile, .. }) => {
                let kind = format!("{}-MIG-{profile}", kind(&card.name, card.memory_bytes));
                let name = format!("{} MIG {profile}", card.name);
                found.add(kind, name, slice_bytes(profile));
            }
        }
    }
    found
}

/// `3g.20gb` has 20 GiB.
fn slice_bytes(profile: &str) -> Option<u64> {
    let size = profile.split('.').nth(1)?.split('+').next()?;
    let gib: u64 = size.strip_suffix("gb")?.parse().ok()?;
    gib.checked_mul(1024 * MIB)
}

/// `NVIDIA A100-SXM4-80GB` is `A100-80GB`, `NVIDIA GeForce RTX 3090` is `RTX3090`.
pub(super) fn kind(name: &str, memory_bytes: Option<u64>) -> String {
    let upper = name.to_uppercase();
    let words = upper.split([' ', '-', '/', '(', ')']).filter(|word| !word.is_empty());
    let is_size = |word: &str| word.strip_suffix("GB").is_some_and(|n| n.parse::<u64>().is_ok());
    let size = words.clone().find(|word| is_size(word)).map(str::to_owned);
    let mut kind: String = words.filter(|word| !NOISE.contains(word) && !is_size(word)).collect();
    // Spelled as sold.
    for (shouted, sold) in [("TI", "Ti"), ("SUPER", "Super"), ("ADA", "Ada"), ("MAXQ", "MaxQ")] {
        kind = kind.replace(shouted, sold);
    }
    if kind.is_empty() {
        return name.trim().to_owned();
    }
    if SIZED.contains(&kind.as_str()) {
        // The tool reports somewhat less than what is sold, and rounds differently by driver.
        let reported = memory_bytes.map(|bytes| format!("{}GB", bytes.div_ceil(1024 * MIB)));
        if let Some(size) = size.or(reported) {
            return format!("{kind}-{size}");
        }
    }
    kind
}
