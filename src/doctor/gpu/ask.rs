//! What the vendors' tools say of cards, of the memory in use on them and of the processes that use it.

use super::{Card, Facts, Holder};
use crate::cli::GpuArgs;
use otela_node::agent::hardware::{self, ToolError, Tools, Visible, run};
use serde_json::{Map, Value};
use std::path::Path;

const MIB: u64 = 1024 * 1024;
const CARDS: [&str; 2] = ["--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits"];
const HOLDERS: [&str; 2] =
    ["--query-compute-apps=pid,gpu_uuid,used_memory,process_name", "--format=csv,noheader,nounits"];
const ROCM_CARDS: [&str; 2] = ["--showid", "--json"];
const ROCM_HOLDERS: [&str; 2] = ["--showpids", "--json"];

/// Asks the tools, all at once: it takes as long as the slowest, at most twice `tools.limit`.
pub(in crate::doctor) async fn read(tools: &Tools, allowed: &GpuArgs) -> Facts {
    let visible = Visible { cuda: allowed.cuda_visible_devices.clone(), rocm: allowed.rocr_visible_devices.clone() };
    let (nvidia, rocm) = (&tools.nvidia_smi, &tools.rocm_smi);
    let (cards, holders, rocm_cards, rocm_holders, hardware) = tokio::join!(
        run(nvidia, &CARDS, tools.limit),
        run(nvidia, &HOLDERS, tools.limit),
        run(rocm, &ROCM_CARDS, tools.limit),
        run(rocm, &ROCM_HOLDERS, tools.limit),
        hardware::detect(tools, &visible),
    );
    // Without them it is not known who uses the cards, and all else is.
    let mut holders = of_nvidia(&holders.unwrap_or_default());
    holders.extend(of_rocm(&rocm_holders.unwrap_or_default()));
    for holder in &mut holders {
        holder.uid = procfs::process::Process::new(holder.pid).and_then(|process| process.uid()).ok();
    }
    Facts {
        nvidia: cards.and_then(|text| self::cards(&text)),
        rocm: rocm_cards.map(|text| dies(&text)),
        holders,
        own_uid: rustix::process::getuid().as_raw(),
        shown: hardware.accelerators,
        driver: hardware.driver,
        allowed: allowed.clone(),
        shared_memory_bytes: shared_memory(Path::new("/dev/shm")),
    }
}

fn shared_memory(at: &Path) -> Option<u64> {
    let facts = rustix::fs::statvfs(at).ok()?;
    Some(facts.f_blocks.saturating_mul(facts.f_frsize))
}

pub(super) fn cards(text: &str) -> Result<Vec<Card>, ToolError> {
    let card = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        let index = fields.next()?.parse().ok()?;
        let uuid = fields.next()?.to_owned();
        // Cards that share the processor's memory say `[N/A]`.
        let used_mib = fields.next()?.parse().ok();
        Some(Card { index, uuid, used_mib })
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let garbage = || ToolError::Garbage(text.chars().take(120).collect::<String>().replace('\n', " "));
    lines.map(card).collect::<Option<_>>().ok_or_else(garbage)
}

/// Lines of another form are of drivers that do not tell.
pub(super) fn of_nvidia(text: &str) -> Vec<Holder> {
    let holder = |line: &str| {
        // The name comes last because it may hold anything.
        let mut fields = line.splitn(4, ',').map(str::trim);
        let pid = fields.next()?.parse().ok()?;
        let card = Some(fields.next()?.to_owned());
        Some(Holder { pid, card, mib: fields.next()?.parse().ok(), name: fields.next()?.to_owned(), uid: None })
    };
    text.lines().filter_map(holder).collect()
}

/// `{"system": {"PID4711": "python3, 1, 6352367616, 0, unknown"}}`: name, how many cards, bytes of their memory.
pub(super) fn of_rocm(text: &str) -> Vec<Holder> {
    let all: Option<Map<String, Value>> = object(text);
    let processes = all.as_ref().and_then(|all| all.get("system")?.as_object());
    let holder = |(key, value): (&String, &Value)| {
        let pid = key.strip_prefix("PID")?.trim().parse().ok()?;
        let mut fields = value.as_str()?.split(',').map(str::trim);
        let name = fields.next()?.to_owned();
        let mib = fields.nth(1)?.parse().ok().map(|bytes: u64| bytes / MIB);
        Some(Holder { pid, card: None, mib, name, uid: None })
    };
    processes.into_iter().flatten().filter_map(holder).filter(|holder| holder.mib != Some(0)).collect()
}

/// How many cards, or halves of cards, `rocm-smi` tells of.
pub(super) fn dies(text: &str) -> usize {
    object(text).map_or(0, |all| all.keys().filter(|key| key.starts_with("card")).count())
}

/// Warnings come before the object.
fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(&text[text.find('{')?..]).ok()
}
