use super::*;
use crate::doctor::finding::Verdict;
use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

fn shown(count: usize, kind: &str) -> Vec<Accelerator> {
    vec![Accelerator { kind: kind.to_owned(), name: kind.to_owned(), count, memory_bytes: None }]
}

/// A machine with so many cards of NVIDIA, all of which are seen.
fn nvidia(count: usize) -> Facts {
    let card = |index| Card { index, uuid: format!("GPU-{index}"), used_mib: Some(4) };
    Facts {
        nvidia: Ok((0..count).map(card).collect()),
        rocm: Err(ToolError::Missing),
        holders: Vec::new(),
        own_uid: 1_000,
        shown: if count > 0 { shown(count, "H100") } else { Vec::new() },
        driver: Some("550.54".to_owned()),
        allowed: GpuArgs::default(),
        shared_memory_bytes: Some(1 << 40),
    }
}

fn failed(said: &str) -> ToolError {
    ToolError::Failed { status: ExitStatus::from_raw(18 << 8), said: said.to_owned() }
}

fn none() -> Facts {
    Facts { nvidia: Err(ToolError::Missing), driver: None, ..nvidia(0) }
}

fn given(count: &str) -> GpuArgs {
    GpuArgs { slurm_gpus_on_node: count.to_owned(), ..GpuArgs::default() }
}

fn cuda(list: &str) -> GpuArgs {
    GpuArgs { cuda_visible_devices: Some(list.to_owned()), ..GpuArgs::default() }
}

/// Everything that is not well.
fn wrong(facts: &Facts) -> Vec<Finding> {
    judge(facts).into_iter().filter(|finding| finding.verdict != Verdict::Ok).collect()
}

fn one(facts: &Facts) -> Finding {
    let mut wrong = wrong(facts);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    wrong.remove(0)
}

#[test]
fn machines_that_are_well() {
    assert_eq!(judge(&nvidia(4))[0].says, "a node would show 4 x H100, driver 550.54");
    assert!(judge(&none())[0].says.contains("neither"));
    for facts in [
        nvidia(4),
        none(),
        Facts { allowed: given("4"), ..nvidia(4) },
        Facts { allowed: GpuArgs { slurm_job_gpus: "0,1".to_owned(), ..cuda("0,1") }, ..nvidia(2) },
        Facts { allowed: given("0"), ..none() },
        // A card with two halves: Slurm counts these.
        Facts {
            allowed: given("8"),
            nvidia: Err(ToolError::Missing),
            rocm: Ok(8),
            shown: shown(4, "MI250X"),
            ..nvidia(0)
        },
    ] {
        assert_eq!(wrong(&facts), [], "{facts:?}");
    }
}

#[test]
fn a_job_that_sees_other_cards_than_it_was_given_is_told() {
    let blind = one(&Facts { allowed: given("4"), ..nvidia(0) });
    assert_eq!((blind.verdict, blind.says.as_str()), (Verdict::Fail, "this job has 4 and sees none"));
    let fewer = one(&Facts { allowed: given("4"), ..nvidia(3) });
    assert_eq!((fewer.verdict, fewer.says.as_str()), (Verdict::Warn, "this job has 4 and sees 3"));
    let step =
        GpuArgs { slurm_job_gpus: "2,3,4,5".to_owned(), slurm_step_gpus: "2,3".to_owned(), ..GpuArgs::default() };
    let more = one(&Facts { allowed: step, ..nvidia(8) });
    assert!(more.says.contains("has 2 and sees 8") && more.advice.unwrap().contains("(2,3)"));
    let toolless = one(&Facts { allowed: given("4"), ..none() });
    assert!(toolless.verdict == Verdict::Warn && toolless.advice.unwrap().contains("--nv"));
    assert!(one(&Facts { allowed: cuda("GPU-a,1,-1"), ..none() }).says.contains("2 are meant"));
    assert_eq!(wrong(&Facts { allowed: cuda("-1"), ..none() }), []);
}

#[test]
fn lists_of_visible_devices_that_name_others_are_told() {
    let hidden = one(&Facts { allowed: cuda("7"), shown: Vec::new(), ..nvidia(2) });
    assert!(hidden.says.contains("hides all 2"), "{hidden:?}");
    let half = one(&Facts { allowed: cuda("0,7"), shown: shown(1, "H100"), ..nvidia(2) });
    assert!(half.says.contains("names 2 and 1 are seen"), "{half:?}");
    let twice = GpuArgs {
        rocr_visible_devices: Some("2,3".to_owned()),
        hip_visible_devices: Some("2,3".to_owned()),
        ..GpuArgs::default()
    };
    let facts =
        Facts { allowed: twice, nvidia: Err(ToolError::Missing), rocm: Ok(8), shown: shown(2, "MI300X"), ..nvidia(0) };
    assert!(one(&facts).says.contains("within the first"));
    let halves = GpuArgs { rocr_visible_devices: Some("0,1,2,3".to_owned()), ..GpuArgs::default() };
    let facts =
        Facts { allowed: halves, nvidia: Err(ToolError::Missing), rocm: Ok(8), shown: shown(2, "MI250X"), ..nvidia(0) };
    assert_eq!(wrong(&facts), [], "four halves are two cards");
}

#[test]
fn tools_that_fail_say_why() {
    let said = "Failed to initialize NVML: Driver/library version mismatch NVML library version: 550.54";
    let mismatch = one(&Facts { nvidia: Err(failed(said)), ..none() });
    assert!(mismatch.verdict == Verdict::Fail && mismatch.says.contains("version mismatch"), "{mismatch:?}");
    let hangs = one(&Facts { nvidia: Err(ToolError::Hangs(Duration::from_secs(5))), ..none() });
    assert!(hangs.verdict == Verdict::Warn && hangs.says.contains("did not end within 5s"), "{hangs:?}");
    assert!(hangs.advice.unwrap().contains("Xid"));
    let unloaded = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.";
    assert_eq!(one(&Facts { nvidia: Err(failed(unloaded)), ..none() }).verdict, Verdict::Warn);
    assert_eq!(one(&Facts { rocm: Err(failed("")), ..none() }).verdict, Verdict::Warn);
}

#[test]
fn memory_that_others_use_is_told_with_the_process() {
    let holders =
        ask::of_nvidia("4711, GPU-1, 20480, python3, or so\n4712, GPU-0, [N/A], x\nNo running processes found\n");
    assert_eq!(holders.len(), 2);
    let with = |uid| vec![Holder { uid, ..holders[0].clone() }];
    let other = one(&Facts { holders: with(Some(7)), ..nvidia(2) });
    assert_eq!(other.says, "20480 MiB of card 1 are in use by process 4711 (python3, or so), of user 7");
    let own = one(&Facts { holders: with(Some(1_000)), ..nvidia(2) });
    assert!(own.advice.unwrap().contains("kill 4711"));
    assert_eq!(wrong(&Facts { holders: with(None), allowed: cuda("0"), shown: shown(1, "H100"), ..nvidia(2) }), []);
    let many = Facts { holders: vec![holders[0].clone(); 7], ..nvidia(2) };
    assert!(wrong(&many).len() == 5 && wrong(&many)[4].says.starts_with("3 more"));
    let mut unseen = nvidia(2);
    unseen.nvidia = ask::cards("0, GPU-0, 70000\n1, GPU-1, [N/A]\n");
    assert!(one(&unseen).says.contains("70000 MiB of card 0"));
    assert!(ask::cards("No devices were found").is_err());
}

#[test]
fn amds_tool_is_understood() {
    let text = "WARNING: low power\n{\"system\": {\"PID4711\": \"ollama, 1, 6352367616, 0, unknown\", \"PID1\": \"idle, 0, 0, 0, 0\"}}";
    let holders = ask::of_rocm(text);
    assert_eq!(holders.len(), 1);
    assert_eq!((holders[0].pid, holders[0].mib, holders[0].name.as_str()), (4711, Some(6058), "ollama"));
    assert_eq!(ask::dies("{\"card0\": {}, \"card1\": {}, \"system\": {}}"), 2);
    assert_eq!((ask::of_rocm("no"), ask::dies("")), (Vec::new(), 0));
}

#[test]
fn slices_and_shared_memory() {
    let slices = Facts { shown: shown(2, "A100-40GB-MIG-3g.20gb"), ..nvidia(1) };
    assert!(one(&slices).says.contains("2 slices"));
    let small = one(&Facts { shared_memory_bytes: Some(64 << 20), ..nvidia(2) });
    assert!(small.check == "shared memory" && small.says.contains("64 MiB"), "{small:?}");
    assert_eq!(wrong(&Facts { shared_memory_bytes: Some(64 << 20), ..nvidia(1) }), []);
}
