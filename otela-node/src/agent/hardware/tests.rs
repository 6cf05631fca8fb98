use super::*;
use std::{fs, os::unix::fs::PermissionsExt};

const GIB: u64 = 1024 * 1024 * 1024;

fn tool(folder: &Path, name: &str, script: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    path
}

async fn detected(nvidia: &str, rocm: &str, visible: &Visible) -> Hardware {
    let folder = tempfile::tempdir().expect("a folder");
    let tools = Tools {
        nvidia_smi: tool(folder.path(), "nvidia-smi", nvidia),
        rocm_smi: tool(folder.path(), "rocm-smi", rocm),
        limit: Duration::from_secs(30),
    };
    detect(&tools, visible).await
}

fn cuda(list: &str) -> Visible {
    Visible { cuda: Some(list.to_owned()), rocm: None }
}

const A100S: &str = r#"case "$1" in
-L) echo 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aa)'; echo 'GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bb)';;
*) echo '0, GPU-aa, 81920, 550.54.15, NVIDIA A100-SXM4-80GB'; echo '1, GPU-bb, 81920, 550.54.15, NVIDIA A100-SXM4-80GB';;
esac"#;

#[test]
fn cards_have_one_short_name_each() {
    let cases = [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("A100-SXM-64GB", "A100-64GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA GH200 120GB", "GH200"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX3080Ti"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA", "NVIDIA"),
    ];
    for (name, kind) in cases {
        assert_eq!(nvidia::kind(name, None), kind, "{name}");
    }
    assert_eq!(nvidia::kind("NVIDIA A100", Some(40536 * 1024 * 1024)), "A100-40GB");
}

#[tokio::test]
async fn equal_cards_are_counted_and_hidden_ones_are_not() {
    let both = detected(A100S, "exit 1", &Visible::default()).await;
    let expected = Accelerator {
        kind: "A100-80GB".into(),
        name: "NVIDIA A100-SXM4-80GB".into(),
        count: 2,
        memory_bytes: Some(80 * GIB),
    };
    assert_eq!(both.accelerators, [expected]);
    assert_eq!(both.driver.as_deref(), Some("550.54.15"));
    assert!(both.cpus > 0 && both.memory_bytes > 0 && !both.hostname.is_empty());
    for (list, count) in [("1", 1), ("GPU-b", 1), ("0,1", 2), ("0,7,1", 1), ("", 0), ("-1", 0), ("NoDevFiles", 0)] {
        let some = detected(A100S, "exit 1", &cuda(list)).await;
        assert_eq!(some.accelerators.iter().map(|a| a.count).sum::<usize>(), count, "{list:?}");
    }
}

#[test]
fn a_card_that_was_cut_shows_its_slices() {
    let cards = nvidia::parse("0, GPU-aa, 40960, 550, NVIDIA A100-SXM4-40GB\n").expect("well formed");
    let slices = nvidia::slices(
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)\n  MIG 3g.20gb     Device  0: (UUID: MIG-x)\n  \
         MIG 3g.20gb     Device  1: (UUID: MIG-y)\n  MIG 1g.5gb      Device  2: (UUID: MIG-z)\n",
    );
    let kinds = |visible| {
        let found = nvidia::found(&cards, &slices, visible);
        found.accelerators.into_iter().map(|a| (a.kind, a.count, a.memory_bytes)).collect::<Vec<_>>()
    };
    let big = || ("A100-40GB-MIG-3g.20gb".to_owned(), 2, Some(20 * GIB));
    assert_eq!(kinds(None), [big(), ("A100-40GB-MIG-1g.5gb".to_owned(), 1, Some(5 * GIB))]);
    assert_eq!(kinds(Some("MIG-z")), [("A100-40GB-MIG-1g.5gb".to_owned(), 1, Some(5 * GIB))]);
}

#[test]
fn memory_that_is_shared_is_unknown() {
    let cards = nvidia::parse("0, GPU-aa, [N/A], 580, NVIDIA GB10\n").expect("well formed");
    assert_eq!(nvidia::found(&cards, &[], None).accelerators[0].memory_bytes, None);
}

#[test]
fn two_dies_are_one_card() {
    let die = r#"{"Card series":"AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2","Device ID":"0x7408","VRAM Total Memory (B)":"68702699520"}"#;
    let text = format!(
        r#"WARNING: low power
        {{"card1":{die},"card0":{die},"card2":{die},"system":{{"Driver version":"6.3.6"}}}}"#
    );
    let (dies, driver) = amd::parse(&text).expect("well formed");
    let found = amd::found(&dies, driver, None);
    let counts: Vec<_> = found.accelerators.iter().map(|a| (a.kind.as_str(), a.count, a.memory_bytes)).collect();
    assert_eq!(counts, [("MI250X", 1, Some(2 * 68_702_699_520)), ("MI250X", 1, Some(68_702_699_520))]);
    assert_eq!(found.driver.as_deref(), Some("6.3.6"));
    assert_eq!(amd::found(&dies, None, Some("2")).accelerators[0].memory_bytes, Some(68_702_699_520));
}

#[test]
fn newer_names_and_single_dies_are_known() {
    let text = r#"{"card0":{"Card Series":"AMD Instinct MI300X","VRAM Total Memory (B)":"206141652992"}}"#;
    let (dies, driver) = amd::parse(text).expect("well formed");
    let found = amd::found(&dies, driver, None);
    assert_eq!((found.accelerators[0].kind.as_str(), found.accelerators[0].count), ("MI300X", 1));
}

#[tokio::test]
async fn tools_that_fail_or_babble_mean_no_accelerator() {
    for script in [
        "exit 9",
        "echo 'No devices were found'",
        "echo '{'; exit 0",
        "echo '{\"card0\": 7}'",
        "printf '\\377'",
        "true",
    ] {
        let hardware = detected(script, script, &Visible::default()).await;
        assert_eq!(hardware.accelerators, [], "{script}");
    }
    let tools = Tools { nvidia_smi: "/nonexistent".into(), rocm_smi: "/dev/null".into(), limit: TOOL_LIMIT };
    assert_eq!(detect(&tools, &Visible::default()).await.accelerators, []);
}

#[tokio::test]
async fn a_tool_that_hangs_is_ended_with_all_its_children() {
    let folder = tempfile::tempdir().expect("a folder");
    // The child holds the pipe open; it must not outlive the question either.
    let alive = folder.path().join("alive");
    rustix::fs::mkfifoat(rustix::fs::CWD, &alive, rustix::fs::Mode::RWXU).expect("a fifo");
    let script = format!("sleep 1000 > {} & wait", alive.display());
    let tools = Tools {
        nvidia_smi: tool(folder.path(), "nvidia-smi", &script),
        rocm_smi: "/nonexistent".into(),
        // Time for the child to be there, on a busy machine.
        limit: Duration::from_secs(5),
    };
    // The fifo opens for reading when the child has it, and ends with the child.
    let end = std::thread::spawn(move || fs::read(alive).map(|bytes| bytes.len()));
    assert_eq!(detect(&tools, &Visible::default()).await.accelerators, []);
    assert_eq!(end.join().expect("no panic").expect("readable"), 0);
}
