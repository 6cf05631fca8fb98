//! Writes a first corpus for each target: `cargo run --manifest-path fuzz/Cargo.toml --example seeds`, from the
//! repository's root. What fuzzing has found besides stays where it is.

#[allow(dead_code)]
#[path = "../../otela-node/src/peer/state/form.rs"]
mod form;

use bytes::Bytes;
use otela_fuzz::{DIRECTIVE, ENTRY, MEMBERSHIP, PROVIDER, RELEASE, key, mesh, message, peer, signed};
use otela_proto::{
    Multiaddr,
    id::{Epoch, Place},
    measure::{Bulk, Order, Outcome, Reply},
    payload::{Accelerator, Hardware, ModelCard, Payload, Role, Service},
    wire::{
        AccusationBody, Answer, Ask, Buckets, Digest, DirectiveBody, Entries, EntryBody, Frame, HelloBody,
        MembershipBody, Probe, ProviderBody, ReleaseBody, Report, Root, Say, Want, WorkBody,
    },
};
use prost::Message;
use std::{collections::BTreeMap, fs, io, path::Path, time::Duration};

/// As in the target `member`.
const WALL_MS: u64 = 1_800_000_000_000;

/// The first four bytes tell how a stream is cut.
const STREAMS: [(&str, &str); 2] = [
    (
        "chat",
        "\u{3}\u{1}\u{7}\u{2}data: {\"id\":\"c\",\"created\":1,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{e9}\"},\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\n\n",
    ),
    (
        "text",
        "0000: comment\n\nevent: x\rdata: a\rdata: b\r\rdata: {\"choices\":[{\"index\":0,\"text\":\"x\"}],\"usage\":{\"prompt_tokens\":1}}\n\n",
    ),
];

fn main() -> io::Result<()> {
    let payload = payload();
    write("payload", "node", &payload.encode_to_vec())?;
    write("payload", "empty-service", &[0x22, 0x00])?;
    certificates(&payload)?;
    let entries: Vec<_> = (0..4).map(|lifecycle| entry(lifecycle, &payload)).collect();
    write("entry", "body", &entries[1].encode_to_vec())?;
    write("entry", "signed", &signed(ENTRY, &key(1), entries[1].encode_to_vec()))?;
    let accusations: Vec<_> = [1, 2].map(accusation).into();
    write("accusation", "suspect", &accusations[0].encode_to_vec())?;
    write("accusation", "evict", &accusations[1].encode_to_vec())?;
    let says = says(&entries, &accusations);
    for (name, say) in &says {
        write("frame", name, &[&[7][..], &framed(say)].concat())?;
        write("member", name, &framed(say))?;
    }
    let conversation: Vec<u8> = says.iter().flat_map(|(_, say)| framed(say)).collect();
    write("member", "conversation", &conversation)?;
    write("frame", "too-long", &[9, 0xff, 0xff, 0xff, 0xff, 1, 2, 3])?;
    write("key", "ed25519", &key(1).to_protobuf_encoding().map_err(io::Error::other)?)?;
    let known = form::Known { peer: peer(2), addresses: vec![address()] };
    let state = form::encode(
        &form::Saved { own: vec![(peer(1), Epoch(WALL_MS))], peers: vec![known], lists: lists() },
        &mesh(),
    );
    let body = state.iter().position(|byte| *byte == b'\n').map_or(0, |line| line + 1);
    write("state", "file", &state)?;
    write("state", "content", &state[body..])?;
    write("hello", "bare", &hello(false).encode_to_vec())?;
    write("hello", "member", &hello(true).encode_to_vec())?;
    for (name, text) in [
        ("chat", r#"{"model":"org/m","messages":[{"role":"user","content":"hi"}],"stream":true}"#),
        ("escapes", r#"{"x":{"model":"inner"},"model":"org\/m:\u0074ag"}"#),
        ("twice", r#"{"model":"a","model":"b"}"#),
        ("array", r#"["m"]"#),
    ] {
        write("scan", name, text.as_bytes())?;
    }
    for (name, text) in STREAMS {
        write("events", name, text.as_bytes())?;
    }
    let bulk = Bulk { bytes: 1 << 20, within: Duration::from_secs(5) };
    for (name, order) in [
        ("echo", Order::Echo { count: 100 }),
        ("send", Order::Send(bulk)),
        ("take", Order::Take(bulk)),
        ("dial", Order::Dial(vec![address()])),
    ] {
        write("probe", name, &order.write())?;
    }
    let outcome = Outcome { address: address(), failed: Some("refused".into()) };
    for (name, reply) in [("taken", Reply::Taken(1 << 20)), ("dialled", Reply::Dialled(vec![outcome]))] {
        write("probe", name, &reply.write())?;
    }
    for (name, path) in [("chat", "/v1/chat/completions"), ("root", "/tokenize"), ("trick", "/v1/../sleep")] {
        write("path", name, path.as_bytes())?;
    }
    for (name, text) in [
        ("json", r#"["/ip4/192.0.2.1/tcp/7411", 7]"#),
        ("otela", r#"{"bootstraps": ["/dns4/relay.example/udp/7411/quic-v1"]}"#),
        ("lines", "# ours\n192.0.2.1:7411\r\n[2001:db8::1]:7411\n"),
    ] {
        write("bootstraps", name, text.as_bytes())?;
    }
    directives()
}

/// Orders of a scheduler.
fn directives() -> io::Result<()> {
    let work = WorkBody { template: "vllm".into(), model: "org/m-1".into(), tensor_parallel: 2, data_parallel: 1 };
    for (name, work) in [("serve", Some(work)), ("rest", None)] {
        let body = DirectiveBody {
            schema: 1,
            node: peer(2).to_bytes(),
            epoch: 1,
            scheduler: peer(1).to_bytes(),
            generation: 1,
            plan: 1,
            work,
        };
        write("directive", name, &body.encode_to_vec())?;
        let signed = message(DIRECTIVE, mesh().as_str(), &key(1), body.encode_to_vec());
        write("directive", &format!("{name}-signed"), &signed.encode_to_vec())?;
    }
    Ok(())
}

/// Certificates of a provider, by themselves and in an entry.
fn certificates(payload: &Payload) -> io::Result<()> {
    let (any, named) = (certificate(""), certificate(mesh().as_str()));
    for (name, certificate) in [("any", &any), ("named", &named)] {
        let signed = message(PROVIDER, &certificate.mesh, &key(1), certificate.encode_to_vec()).encode_to_vec();
        write("provider", name, &certificate.encode_to_vec())?;
        write("provider", &format!("{name}-signed"), &signed)?;
        let certified = Payload { provider_certificate: signed, ..payload.clone() };
        write("payload", &format!("certified-{name}"), &certified.encode_to_vec())?;
        write("member", &format!("certified-{name}"), &framed(&Say::Entries(page(&[entry(1, &certified)]))))?;
    }
    Ok(())
}

/// What a peer shows at the door, with everything or nothing.
fn hello(signed: bool) -> HelloBody {
    let (from_ms, until_ms) = (WALL_MS - 1_000, WALL_MS + 1_000_000);
    let release = ReleaseBody {
        schema: 1,
        digest: vec![7; 32],
        version: "0.2.0".to_owned(),
        from_ms,
        until_ms,
        key: peer(1).to_bytes(),
    };
    let membership =
        MembershipBody { schema: 1, member: peer(0).to_bytes(), from_ms, until_ms, authority: peer(2).to_bytes() };
    HelloBody {
        schema: 1,
        mesh: mesh().to_string(),
        nonce: vec![1; 32],
        release: signed.then(|| message(RELEASE, "", &key(1), release.encode_to_vec())),
        membership: signed.then(|| message(MEMBERSHIP, mesh().as_str(), &key(2), membership.encode_to_vec())),
        evidence: vec![],
    }
}

fn lists() -> BTreeMap<String, Vec<Multiaddr>> {
    [("/dnsaddr/example.org".to_owned(), vec![address()])].into()
}

fn write(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("seed-{name}")), bytes)
}

fn framed(say: &Say) -> Vec<u8> {
    let frame = Frame { say: Some(say.clone()) }.encode_to_vec();
    [&(frame.len() as u32).to_be_bytes()[..], &frame].concat()
}

fn address() -> Multiaddr {
    "/ip4/192.0.2.1/tcp/7411".parse().expect("a legal address")
}

fn payload() -> Payload {
    let accelerator = Accelerator { kind: "A100-80GB".into(), count: 4, memory_bytes: 80 << 30, ..Default::default() };
    let model = ModelCard { id: "org/m".into(), context_length: 8_192, ..Default::default() };
    Payload {
        addresses: vec![address().to_vec(), vec![0xff]],
        roles: vec![Role::Node as i32],
        hardware: Some(Hardware { accelerators: vec![accelerator], hostname: "n1".into(), ..Default::default() }),
        services: vec![Service { name: "llm".into(), models: vec![model], ..Default::default() }],
        labels: [("site".to_owned(), "a".to_owned())].into(),
        ends_at_ms: Some(WALL_MS),
        software: "0.1.0".into(),
        ..Default::default()
    }
}

fn entry(lifecycle: u32, payload: &Payload) -> EntryBody {
    EntryBody {
        schema: 1,
        owner: peer(1).to_bytes(),
        epoch: 7,
        lifecycle,
        version: 3,
        issued_at_ms: WALL_MS,
        ttl_s: 86_400,
        payload: payload.encode_to_vec(),
    }
}

/// For the owner of [`entry`], in one mesh or in all.
fn certificate(mesh: &str) -> ProviderBody {
    ProviderBody {
        schema: 1,
        provider: peer(1).to_bytes(),
        subject: peer(1).to_bytes(),
        mesh: mesh.to_owned(),
        constraints: [("site".to_owned(), "a".to_owned())].into(),
        from_ms: WALL_MS - 1_000,
        until_ms: WALL_MS + 1_000_000,
    }
}

fn accusation(verdict: u32) -> AccusationBody {
    AccusationBody {
        schema: 1,
        accuser: peer(2).to_bytes(),
        subject: peer(1).to_bytes(),
        epoch: 7,
        version: 3,
        verdict,
        issued_at_ms: WALL_MS,
        ttl_s: 86_400,
    }
}

/// The target signs bodies itself: what is inside of a page is the body alone.
fn page(entries: &[EntryBody]) -> Entries {
    let signed = entries.iter().map(|body| Bytes::from(body.encode_to_vec())).collect();
    Entries { signed, accusations: Vec::new() }
}

fn says(entries: &[EntryBody], accusations: &[AccusationBody]) -> Vec<(&'static str, Say)> {
    let place = Place::of(&peer(1)).0;
    let accused = accusations.iter().map(|body| Bytes::from(body.encode_to_vec())).collect();
    let digest =
        Digest { buckets: u32::MAX, places: vec![place], epochs: vec![7], versions: vec![13], hashes: vec![1] };
    vec![
        ("entries", Say::Entries(page(&entries[..2]))),
        ("accusations", Say::Entries(Entries { accusations: accused, ..page(&entries[2..]) })),
        ("root", Say::Root(Root { hash: vec![1; 16], count: 2 })),
        ("buckets", Say::Buckets(Buckets { hashes: vec![vec![0; 16]; 16] })),
        ("digest", Say::Digest(digest)),
        ("want", Say::Want(Want { places: vec![place] })),
        ("probe", Say::Probe(Probe { number: 1 })),
        ("answer", Say::Answer(Answer { number: 1, wall_ms: WALL_MS })),
        ("ask", Say::Ask(Ask { number: 2, subject: peer(3).to_bytes() })),
        ("report", Say::Report(Report { number: 2, alive: true })),
    ]
}
