use super::*;

fn extended(text: &str) -> Result<Catalog, String> {
    let mut catalog = Catalog::builtin();
    catalog.extend("mine.toml", text).map_err(|error| error.to_string())?;
    Ok(catalog)
}

#[test]
fn what_comes_with_the_program_is_large_enough_and_sane() {
    let catalog = Catalog::builtin();
    assert!(catalog.models().count() >= 30 && catalog.accelerators().count() >= 15);
    for model in catalog.models() {
        let width = f64::from(model.attention.heads * model.attention.head_dim) / f64::from(model.hidden);
        assert!((0.5..=4.0).contains(&width), "{}", model.name);
        assert!(model.weight_bytes() <= model.weight_bytes_eq2() * 1.6 + 1e9, "{}", model.name);
    }
    for accelerator in catalog.accelerators() {
        let ridge = accelerator.peaks.bf16 / accelerator.bandwidth_bytes_per_s;
        assert!((30.0..=500.0).contains(&ridge), "{} has its ridge at {ridge} FLOP/byte", accelerator.name);
    }
}

#[test]
fn parameters_are_what_the_names_say() {
    let catalog = Catalog::builtin();
    for (name, billions) in [
        ("Llama-3.1-8B", 8.03),
        ("Llama-3.1-405B", 405.9),
        ("Llama-3.2-1B", 1.24),
        ("Mixtral-8x7B-v0.1", 46.7),
        ("Mixtral-8x22B-v0.1", 140.6),
        ("Mistral-Nemo-12B", 12.25),
        ("Mistral-Small-24B", 23.6),
        ("Mistral-Large-123B", 122.6),
        ("Qwen2.5-0.5B", 0.49),
        ("Qwen2.5-72B", 72.7),
        ("Qwen3-0.6B", 0.6),
        ("Qwen3-4B", 4.02),
        ("Qwen3-30B-A3B", 30.5),
        ("Qwen3-235B-A22B", 235.1),
        ("gemma-2-9b", 9.24),
        ("gemma-2-27b", 27.2),
        ("gemma-3-12b", 11.8),
        ("gemma-3-27b", 27.0),
        ("phi-4", 14.7),
        ("gpt-oss-20b", 20.9),
        ("gpt-oss-120b", 116.8),
        ("bloom-7b1", 7.07),
        ("opt-6.7b", 6.66),
        ("gpt-j-6b", 6.05),
    ] {
        let parameters = catalog.model(name).unwrap().parameters() / 1e9;
        assert!((parameters / billions - 1.0).abs() < 0.012, "{name}: {parameters}");
    }
}

#[test]
fn bits_change_bytes_and_nothing_else() {
    let catalog = Catalog::builtin();
    let (plain, quantized) = (catalog.model("Qwen2.5-72B").unwrap(), catalog.model("Qwen2.5-72B-AWQ").unwrap());
    assert_eq!(plain.parameters(), quantized.parameters());
    // What the hub shows for the two: 145 GB and 41.6 GB.
    assert!((quantized.weight_bytes() / 1e9 - 41.6).abs() < 1.0, "{}", quantized.weight_bytes());
    assert_eq!(catalog.model("Llama-3.3-70B-FP8").unwrap().bits.compute, Precision::Fp8);
    let oss = catalog.model("openai/gpt-oss-120b").unwrap();
    assert!((oss.weight_bytes() / 1e9 - 65.0).abs() < 2.0, "{}", oss.weight_bytes());
    // Copies of keys and values where there are more accelerators than heads of them.
    let seven = catalog.model("Qwen2.5-7B").unwrap();
    assert_eq!(seven.kv_bytes_per_token(8), 2.0 * seven.kv_bytes_per_token(4));
    assert_eq!(seven.kv_bytes_per_token(1), 57_344.0);
}

#[test]
fn names_are_found_as_people_and_tools_write_them() {
    let catalog = Catalog::builtin();
    for (asked, name) in [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("Llama-2-7b-hf", "Llama-2-7b"),
        ("meta-llama/Llama-2-70b-chat-hf", "Llama-2-70b"),
        ("mistralai/Mistral-7B-v0.1", "Mistral-7B-v0.1"),
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", "Qwen2.5-32B-AWQ"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
    ] {
        assert_eq!(catalog.model(asked).unwrap().name, name, "{asked}");
    }
    for (kind, tool, name) in [
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("A100-40GB", "NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("H100", "NVIDIA H100 80GB HBM3", "H100"),
        ("H100", "NVIDIA H100 NVL", "H100-NVL"),
        ("GH200", "NVIDIA GH200 120GB", "GH200"),
        ("RTX3090", "NVIDIA GeForce RTX 3090", "RTX3090"),
        ("RTXPRO6000", "NVIDIA RTX PRO 6000 Blackwell Max-Q", "RTXPRO6000"),
        ("MI250X", "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2", "MI250X"),
    ] {
        assert_eq!(catalog.announced(kind, tool).unwrap().name, name, "{tool}");
    }
}

#[test]
fn an_unknown_name_gives_the_nearest() {
    let catalog = Catalog::builtin();
    let unknown = catalog.model("meta-llama/Lama-3.1-8b").unwrap_err();
    assert_eq!(unknown.nearest[0], "Llama-3.1-8B");
    assert_eq!(
        catalog.accelerator("H10O").unwrap_err().to_string(),
        "the catalog has no accelerator \"H10O\"; the nearest are H100, H100-NVL and H100-PCIe, or describe it in a file of \
         your own"
    );
}

#[test]
fn a_users_file_extends_and_overrides() {
    let catalog = extended(
        "[models.mine]\nlike = \"Qwen2.5-7B\"\naliases = [\"me/mine\"]\nkv_bits = 8\n\
         [models.\"Qwen2.5-7B\"]\ncontext_max = 4096\n\
         [accelerators.X1]\nlike = \"H100\"\nmemory_gb = 100\n[accelerators.X2]\nlike = \"X1\"\nper_node = 2\n",
    )
    .unwrap();
    let mine = catalog.model("me/mine-Instruct").unwrap();
    assert_eq!((mine.hidden, mine.bits.kv), (3584, 8.0));
    assert_eq!(catalog.model("Qwen/Qwen2.5-7B").unwrap().context_max, 4096);
    let x2 = catalog.accelerator("X2").unwrap();
    assert_eq!((x2.memory_bytes, x2.per_node, x2.like.as_deref()), (100e9, 2, Some("X1")));
}

#[test]
fn what_is_wrong_is_told_with_file_and_key() {
    for (text, line) in [
        ("[models.a]\nlayers = 0\n", "mine.toml: models.a.layers: 0 is not a whole number from 1 to 4294967295"),
        ("[models.a]\nlike = \"Qwen2.5-7B\"\nlayer = 3\n", "mine.toml: models.a.layer: unknown key; the nearest "),
        ("[models.a]\nlayers = 3\n", "mine.toml: models.a.hidden: missing; give it, or like = \"NAME\""),
        ("[models.a]\nlike = \"b\"\n[models.b]\nlike = \"a\"\n", "mine.toml: models.a.like: in a circle"),
        (
            "[models.a]\nlike = \"Qwen2.5-7X\"\n",
            "mine.toml: models.a.like: the catalog has no model \"Qwen2.5-7X\"; the",
        ),
        (
            "[models.a]\nlike = \"phi-4\"\naliases = [\"Yi-34B\"]\n",
            "mine.toml: models.a.aliases: \"Yi-34B\" stands for Yi",
        ),
        (
            "[models.a]\nlike = \"phi-4\"\nkv_heads = 80\n",
            "mine.toml: models.a.kv_heads: 80 are more than the 40 heads",
        ),
        ("[models.a]\nlike = \"phi-4\"\ncompute = \"fp3\"\n", "mine.toml: models.a.compute: \"fp3\" is none of"),
        ("[models.a]\nlike = \"phi-4\"\nexperts = { count = 2 }\n", "mine.toml: models.a.experts.active: missing;"),
        (
            "[accelerators.a]\nlike = \"H100\"\nmemory_gb = -1\n",
            "mine.toml: accelerators.a.memory_gb: -1 is not a number",
        ),
        ("[accelerators.a]\npeak_tflops = { fp8 = 1 }\n", "mine.toml: accelerators.a.memory_gb: missing;"),
        ("[accelerator.a]\n", "mine.toml: accelerator: unknown: there are models and accelerators"),
        ("models = 3\n", "mine.toml: models: not a table"),
        ("[models.a]\nlayers = = 3\n", "mine.toml: line 2: "),
    ] {
        let told = extended(text).expect_err(text);
        assert!(told.starts_with(line) && !told.contains('\n'), "{told}");
    }
}
