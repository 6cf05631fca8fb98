use super::{
    facts::{Tier, bits_of},
    *,
};
use otela_proto::payload::Accelerator;

fn facts(change: impl FnOnce(&mut otela_proto::payload::Payload)) -> Facts {
    Facts::of(&crate::candidate::tests::replica(1, "m", change))
}

fn h100(payload: &mut otela_proto::payload::Payload) {
    let hardware = payload.hardware.get_or_insert_default();
    hardware.accelerators =
        vec![Accelerator { kind: "H100-80GB".into(), name: "H100".into(), count: 4, memory_bytes: 80 << 30 }];
    payload.labels.extend([("region".to_owned(), "ch".to_owned()), ("Team".to_owned(), "Vision".to_owned())]);
    let service = &mut payload.services[0];
    service.engine = "vllm".into();
    service.models[0].context_length = 32_768;
    service.models[0].quantization = "fp8".into();
}

#[test]
fn each_kind_of_requirement_is_checked() {
    let facts = facts(h100);
    for (text, met) in [
        ("quantization>=8bit", true),
        ("quantization >= 16-bit", false),
        ("quantization<16", true),
        ("context>=32768", true),
        ("context>32_768", false),
        ("gpu=H100", true),
        ("gpu=h100-80gb", true),
        ("gpu=H10", false),
        ("gpu=A100|H100", true),
        ("gpu!=A100", true),
        ("accelerators>=4", true),
        ("gpus==8", false),
        ("memory>=80GB", true),
        ("memory>80GiB", false),
        ("engine=VLLM", true),
        ("engine!=vllm", false),
        ("region=ch", true),
        ("region!=ch|de", false),
        ("label.Team=Vision", true),
        ("label.Team=vision", false),
        ("tier=stable", true),
        ("tier=volatile|limited", false),
        ("gpu=H100, region=ch , context>1", true),
        ("gpu=H100,region=de", false),
    ] {
        let requirements: Requirements = text.parse().unwrap();
        assert_eq!(requirements.are_met(&facts), met, "{text}");
    }
}

#[test]
fn what_is_not_told_is_not_met_and_said_to_be_untold() {
    let nodes = [facts(|_| ()), facts(h100)];
    let requirements: Requirements = "gpu=A100, context>1, label.x!=y, tier=stable".parse().unwrap();
    assert!(!requirements.are_met(&nodes[0]));
    let unmet: Vec<_> = requirements.unmet(&nodes.iter()).iter().map(ToString::to_string).collect();
    assert_eq!(
        unmet,
        [
            "`gpu=A100` fails for 2 (untold by 1 of them)",
            "`context>1` fails for 1 (untold by 1 of them)",
            "`label.x!=y` fails for 2 (untold by 2 of them)",
        ]
    );
}

#[test]
fn tiers_are_told_or_follow_from_the_end() {
    let tier = |change: fn(&mut otela_proto::payload::Payload)| facts(change).tier;
    assert_eq!(tier(|_| ()), Tier::Stable);
    assert_eq!(tier(|payload| payload.ends_at_ms = Some(1)), Tier::Limited);
    assert_eq!(tier(|payload| _ = payload.labels.insert("tier".into(), "Volatile".into())), Tier::Volatile);
}

#[test]
fn slips_are_named() {
    for (text, why) in [
        ("", "empty"),
        (" , ", "empty"),
        ("gpu", "none of ="),
        ("gpu=", "no value"),
        ("gpu=>H100", "no value"),
        ("gpu>=H100", "only be compared"),
        ("quantization>=high", "number of bits"),
        ("memory>=80", "a size"),
        ("context>=32k", "number of tokens"),
        ("tier=gold", "stable, limited and volatile"),
        ("colour=red", "known are"),
        ("label.=x", "known are"),
        ("gpu!H100", "none of ="),
    ] {
        let error = text.parse::<Requirements>().unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert!("gpu=A,".repeat(17).parse::<Requirements>().unwrap_err().to_string().contains("16"));
}

#[test]
fn names_of_number_formats_are_read() {
    for (name, bits) in [
        ("fp8", Some(8)),
        ("FP8_E4M3", Some(8)),
        ("bfloat16", Some(16)),
        ("float32", Some(32)),
        ("half", Some(16)),
        ("awq", Some(4)),
        ("gptq", Some(4)),
        ("gptq-int8", Some(8)),
        ("w4a16", Some(4)),
        ("compressed-tensors", None),
        ("q5_k_m", Some(5)),
        ("8-bit", Some(8)),
        ("4bit", Some(4)),
        ("mxfp4", Some(4)),
        ("auto", None),
        ("", None),
    ] {
        assert_eq!(bits_of(name), bits, "{name}");
    }
}
