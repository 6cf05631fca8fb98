//! Which accelerators a node here would show, which its job was given, and what is in the way of an engine on them.

mod ask;

pub(super) use ask::read;

use super::finding::Finding;
use crate::cli::GpuArgs;
use otela_node::agent::hardware::{Accelerator, ToolError};

const CHECK: &str = "gpu";
/// A card with a display or a driver's own buffers has less in use.
const IN_USE_MIB: u64 = 1_024;
/// Of processes, and of cards, so many are told.
const SHOWN_MAX: usize = 4;
/// NCCL takes tens of MiB for each pair of cards; containers have 64 MiB if nobody asks for more.
const SHARED_BYTES: u64 = 1024 * 1024 * 1024;

/// A card that `nvidia-smi` tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    index: usize,
    uuid: String,
    /// Unknown where it is shared with the processor.
    used_mib: Option<u64>,
}

/// A process that uses cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pid: i32,
    /// The card's UUID, where the tool tells.
    card: Option<String>,
    mib: Option<u64>,
    name: String,
    /// Whose it is; unknown of one that cannot be seen from here.
    uid: Option<u32>,
}

/// What is known of this machine's accelerators.
#[derive(Debug)]
pub(super) struct Facts {
    nvidia: Result<Vec<Card>, ToolError>,
    /// How many cards, or halves of them.
    rocm: Result<usize, ToolError>,
    holders: Vec<Holder>,
    own_uid: u32,
    /// What a node here would show.
    shown: Vec<Accelerator>,
    driver: Option<String>,
    allowed: GpuArgs,
    /// The size of `/dev/shm`.
    shared_memory_bytes: Option<u64>,
}

impl Facts {
    /// How many accelerators a node here would show.
    pub(super) fn shown(&self) -> usize {
        self.shown.iter().map(|kind| kind.count).sum()
    }

    /// The same, with both halves of a card that has two: so Slurm and the drivers count.
    fn units(&self) -> usize {
        self.shown.iter().map(|kind| if kind.kind.starts_with("MI250") { 2 * kind.count } else { kind.count }).sum()
    }

    /// How many Slurm has given to this step or job on this machine, if it tells.
    fn given(&self) -> Option<usize> {
        let GpuArgs { slurm_step_gpus, slurm_gpus_on_node, slurm_job_gpus, .. } = &self.allowed;
        let listed = |list: &String| (!list.is_empty()).then(|| list.split(',').count());
        listed(slurm_step_gpus).or_else(|| slurm_gpus_on_node.trim().parse().ok()).or_else(|| listed(slurm_job_gpus))
    }

    /// How many the lists of visible devices name, if any.
    fn named(&self) -> Option<usize> {
        let GpuArgs { cuda_visible_devices, rocr_visible_devices, .. } = &self.allowed;
        let is_device =
            |word: &&str| word.parse::<usize>().is_ok() || word.starts_with("GPU-") || word.starts_with("MIG-");
        let count = |list: &String| list.split(',').map(str::trim).filter(is_device).count();
        [cuda_visible_devices, rocr_visible_devices].into_iter().flatten().map(count).find(|count| *count > 0)
    }

    /// Whether the tool that tells of these accelerators works.
    fn is_told(&self) -> bool {
        self.nvidia.is_ok() || self.rocm.is_ok()
    }
}

/// What is to be said of them.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<_> = of_tools(facts).into_iter().chain(of_shown(facts)).collect();
    findings.extend(of_given(facts));
    findings.extend(of_variables(facts));
    findings.extend(of_slices(facts));
    findings.extend(of_holders(facts));
    findings.extend(of_shared_memory(facts));
    findings
}

fn of_tools(facts: &Facts) -> Vec<Finding> {
    let errors = [("nvidia-smi", facts.nvidia.as_ref().err()), ("rocm-smi", facts.rocm.as_ref().err())];
    let broken = errors.into_iter().filter_map(|(tool, error)| of_broken(tool, error?));
    let mut findings: Vec<_> = broken.collect();
    if let (Err(ToolError::Missing), Err(ToolError::Missing)) = (&facts.nvidia, &facts.rocm) {
        let advice =
            "in a container pass the host's tools in (apptainer --nv or --rocm, docker --gpus), or put them on PATH";
        let missing = "neither nvidia-smi nor rocm-smi is here";
        findings.push(match facts.given().filter(|given| *given > 0).or_else(|| facts.named()) {
            Some(named) => {
                let says = format!("{named} are meant for this place, and {missing}: a node would show none");
                Finding::warn(CHECK, says, advice)
            }
            None => Finding::ok(CHECK, format!("none: {missing}")),
        });
    }
    findings
}

fn of_broken(tool: &str, error: &ToolError) -> Option<Finding> {
    let says = format!("{tool}: {error}");
    Some(match error {
        ToolError::Missing => return None,
        ToolError::Failed { said, .. } if said.contains("version mismatch") => Finding::fail(
            CHECK,
            says,
            "the driver was updated and its old module still runs: have this machine restarted, or take another; in a \
             container use the host's libraries and not the image's",
        ),
        ToolError::Hangs(_) => Finding::warn(
            CHECK,
            says,
            "a card may have fallen off: see `dmesg` for Xid; where cards only wake up slowly, have persistence mode \
             switched on (nvidia-smi -pm 1)",
        ),
        _ => Finding::warn(
            CHECK,
            says,
            "run it by hand: where it shows nothing, a node shows no accelerators and engines find none; see whether \
             the driver is loaded (lsmod) and /dev has its devices",
        ),
    })
}

fn of_shown(facts: &Facts) -> Option<Finding> {
    if facts.shown.is_empty() {
        return None;
    }
    let kinds: Vec<_> = facts.shown.iter().map(|kind| format!("{} x {}", kind.count, kind.kind)).collect();
    let driver = facts.driver.as_ref().map_or_else(String::new, |driver| format!(", driver {driver}"));
    Some(Finding::ok(CHECK, format!("a node would show {}{driver}", kinds.join(", "))))
}

/// What Slurm has given, held against what is seen.
fn of_given(facts: &Facts) -> Option<Finding> {
    let (given, shown) = (facts.given().filter(|_| facts.is_told())?, facts.shown());
    let ids = [&facts.allowed.slurm_step_gpus, &facts.allowed.slurm_job_gpus].into_iter().find(|ids| !ids.is_empty());
    match (given, shown) {
        (1.., 0) => Some(Finding::fail(
            CHECK,
            format!("this job has {given} and sees none"),
            "start the node in the step that has them (srun --gpus-per-task or --gres=gpu:N), leave CUDA_VISIBLE_DEVICES \
             and ROCR_VISIBLE_DEVICES to Slurm, and in a container pass the devices in (--nv, --rocm)",
        )),
        _ if facts.units() < given => Some(Finding::warn(
            CHECK,
            format!("this job has {given} and sees {shown}"),
            "see which the variables *_VISIBLE_DEVICES leave out; `nvidia-smi -L` shows whether one has fallen off",
        )),
        _ if shown > given => Some(Finding::warn(
            CHECK,
            format!("this job has {given} and sees {shown}: an engine may take another job's"),
            format!(
                "set CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES to those of the job{}",
                ids.map_or_else(String::new, |ids| format!(" ({ids})"))
            ),
        )),
        _ => None,
    }
}

/// What the lists of visible devices name, held against what is seen.
fn of_variables(facts: &Facts) -> Vec<Finding> {
    let GpuArgs { cuda_visible_devices, rocr_visible_devices, hip_visible_devices, .. } = &facts.allowed;
    let mut findings = Vec::new();
    let nvidia = facts.nvidia.as_ref().map_or(0, Vec::len);
    let rocm = facts.rocm.as_ref().copied().unwrap_or(0);
    for (variable, list, there) in
        [("CUDA_VISIBLE_DEVICES", cuda_visible_devices, nvidia), ("ROCR_VISIBLE_DEVICES", rocr_visible_devices, rocm)]
    {
        let Some(list) = list.as_ref().filter(|_| there > 0) else { continue };
        let named = list.split(',').filter(|word| !word.trim().is_empty()).count();
        if facts.shown.is_empty() {
            let advice = "unset it, or name devices that are there: the first has the number 0";
            findings.push(Finding::warn(CHECK, format!("{variable} is {list:?} and hides all {there}"), advice));
        } else if (nvidia == 0 || rocm == 0) && facts.units() < named {
            let says = format!("{variable} names {named} and {} are seen: {list}", facts.shown());
            let advice = "drivers end the list at the first that is not there; within a job the first has the number 0";
            findings.push(Finding::warn(CHECK, says, advice));
        }
    }
    if let (Some(rocr), Some(hip)) = (rocr_visible_devices, hip_visible_devices) {
        let says =
            format!("ROCR_VISIBLE_DEVICES is {rocr} and HIP_VISIBLE_DEVICES {hip}: the second counts within the first");
        findings.push(Finding::warn(CHECK, says, "unset HIP_VISIBLE_DEVICES"));
    }
    findings
}

fn of_slices(facts: &Facts) -> Option<Finding> {
    let slices: usize = facts.shown.iter().filter(|a| a.kind.contains("-MIG-")).map(|a| a.count).sum();
    (slices > 1).then(|| {
        let says = format!("{slices} slices of MIG are seen, and an engine runs on one");
        let advice = "start a node for each, with CUDA_VISIBLE_DEVICES=MIG-... as `nvidia-smi -L` lists them";
        Finding::warn(CHECK, says, advice)
    })
}

/// Memory that is not free for an engine.
fn of_holders(facts: &Facts) -> Vec<Finding> {
    let cards = facts.nvidia.as_deref().unwrap_or_default();
    let is_ours = |card: &Card| is_visible(card, facts.allowed.cuda_visible_devices.as_deref());
    let hidden = |uuid: &String| cards.iter().any(|card| card.uuid == *uuid && !is_ours(card));
    let ours: Vec<_> = facts.holders.iter().filter(|holder| !holder.card.as_ref().is_some_and(hidden)).collect();
    let mut findings: Vec<_> =
        ours.iter().take(SHOWN_MAX).map(|holder| of_holder(holder, cards, facts.own_uid)).collect();
    if ours.len() > SHOWN_MAX {
        let says = format!("{} more processes use the accelerators", ours.len() - SHOWN_MAX);
        findings.push(Finding::warn(CHECK, says, "see nvidia-smi or rocm-smi --showpids"));
    }
    // In a container, or under other users' names, processes are not told of.
    let is_told = |card: &Card| facts.holders.iter().any(|holder| holder.card.as_ref() == Some(&card.uuid));
    let unknown = cards.iter().filter(|card| is_ours(card) && !is_told(card));
    for (card, mib) in
        unknown.filter_map(|card| Some((card, card.used_mib?))).filter(|(_, mib)| *mib >= IN_USE_MIB).take(SHOWN_MAX)
    {
        let says = format!("{mib} MiB of card {} are in use by what cannot be seen from here", card.index);
        findings.push(Finding::warn(CHECK, says, "see nvidia-smi on the host; an engine has so much less"));
    }
    findings
}

fn of_holder(holder: &Holder, cards: &[Card], own_uid: u32) -> Finding {
    let Holder { pid, name, .. } = holder;
    let mib = holder.mib.map_or_else(|| "memory".to_owned(), |mib| format!("{mib} MiB"));
    let card = cards.iter().find(|card| holder.card.as_ref() == Some(&card.uuid));
    let card = card.map_or_else(String::new, |card| format!(" of card {}", card.index));
    let whose = match holder.uid {
        Some(uid) if uid == own_uid => "your own".to_owned(),
        Some(uid) => format!("of user {uid}"),
        None => "of an owner unknown here".to_owned(),
    };
    let says = format!("{mib}{card} are in use by process {pid} ({name}), {whose}");
    let advice = if holder.uid == Some(own_uid) {
        format!("if that is the engine that this is about, all is well; if it was left behind, kill {pid}")
    } else {
        "ask its owner or the site: two engines on one card run out of memory".to_owned()
    };
    Finding::warn(CHECK, says, advice)
}

/// As far as whole cards go; one that was cut is looked at whichever slice is visible.
fn is_visible(card: &Card, list: Option<&str>) -> bool {
    let Some(list) = list else { return true };
    list.split(',').map(str::trim).any(|word| {
        word.parse() == Ok(card.index)
            || word.starts_with("MIG-")
            || (word.contains('-') && card.uuid.starts_with(word))
    })
}

fn of_shared_memory(facts: &Facts) -> Option<Finding> {
    let bytes = facts.shared_memory_bytes.filter(|_| facts.shown() > 1)?;
    (bytes < SHARED_BYTES).then(|| {
        let says =
            format!("/dev/shm has {} MiB, and {} accelerators talk through it", bytes / 1024 / 1024, facts.shown());
        let advice =
            "give the container more, docker --ipc=host or --shm-size=16g; in Kubernetes an emptyDir of medium Memory";
        Finding::warn("shared memory", says, advice)
    })
}

#[cfg(test)]
mod tests;
