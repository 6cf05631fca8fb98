//! For whom nodes are run: proven with the provider's key or its certificate, and not to be had by copying.

use crate::support::{Mesh, Otela, eventually, get};
use libp2p::PeerId;
use otela_node::{
    peer::{
        Identity, Peer, PeerConfig,
        admission::{Kind, armor},
        provider::{ProviderSettings, Subject},
    },
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::{payload::Role, provider::ProviderRules, wire::Signed};
use prost::Message;
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};
use tempfile::TempDir;

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

fn run(arguments: &[&str]) -> Output {
    Command::new(OTELA).args(arguments).output().unwrap()
}

/// What a command printed, which must have gone well.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A provider with a key, and a place for its nodes' keys and certificates.
struct Provider {
    dir: TempDir,
    id: String,
}

impl Provider {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let id = printed(&["key", dir.path().join("provider.key").to_str().unwrap()]);
        Self { dir, id }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A node's key: its file and its id.
    fn node(&self, name: &str) -> (String, String) {
        let path = self.path(name);
        let id = printed(&["key", &path]);
        (path, id)
    }

    /// Signs for `peer`; the certificate's file.
    fn sign(&self, peer: &str, more: &[&str]) -> String {
        let (key, out) = (self.path("provider.key"), self.path(&format!("{peer}.provider")));
        printed(&[&["sign", "--provider-of", peer, "--key", &key, "--out", &out], more].concat())
    }
}

/// Starts an idle node that joins through the mesh's ingress; its id.
async fn join(mesh: &mut Mesh, flags: &[&str]) -> String {
    let common = ["start", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", &mesh.bootstrap];
    let node = Otela::run([&common[..], flags].concat());
    let id = node.says(" peer=").await;
    mesh.nodes.push(node);
    id
}

/// What the ingress makes of a node's provider, once it shows one that `is` as wanted.
async fn provider_of(mesh: &Mesh, id: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("the provider of {id}"), async || {
        let node = get(mesh.http, &format!("/v1/registry/nodes/{id}")).await;
        Some(node).filter(|node| node.status == 200).map(|node| node.json()["provider"].clone()).filter(&is)
    })
    .await
}

/// A peer that shows what it has copied from the entry of node `of`: its tasks and its id. The file `copied` has it too.
async fn thief(mesh: &Mesh, of: &str, copied: &str) -> (Tasks, String) {
    let of: PeerId = of.parse().unwrap();
    let bootstrap = vec![mesh.bootstrap.parse().unwrap()];
    let config = |observes| PeerConfig {
        observes,
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        bootstrap: bootstrap.clone(),
        ..PeerConfig::new("test".parse().unwrap(), Identity::ephemeral(), vec![Role::Node])
    };
    let looking = Tasks::new();
    let (observer, _) = Peer::start(config(true), &looking, &Metrics::new()).await.unwrap();
    let bytes = eventually("what is to be copied", async || {
        let view = observer.view();
        Some(view.node(&of)?.entry.payload().provider_certificate.clone()).filter(|bytes| !bytes.is_empty())
    })
    .await;
    looking.stop();
    fs::write(copied, armor(Kind::Provider, &[], &Signed::decode(&*bytes).unwrap())).unwrap();
    let (subject, rules) = (Subject { peer: of, labels: [].into() }, ProviderRules::new("test".parse().unwrap()));
    let provider = Some(ProviderSettings::with_certificate(copied.as_ref(), subject, &rules).unwrap());
    let tasks = Tasks::new();
    let (thief, _) = Peer::start(PeerConfig { provider, ..config(false) }, &tasks, &Metrics::new()).await.unwrap();
    (tasks, thief.id().to_string())
}

/// A node that must not start; what it says on its one line, and its exit code.
fn refused(flags: &[&str]) -> (i32, String) {
    let output = run(&[&["start", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0"], flags].concat());
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn a_node_with_its_provider_s_key_is_verified_and_a_copy_of_what_it_shows_is_not() {
    let (provider, mut mesh) = (Provider::new(), Mesh::ingress(&[]).await);
    let key = provider.path("provider.key");
    let good = join(&mut mesh, &["--provider-key", &key, "--label", "provider=mine"]).await;
    let shown = provider_of(&mesh, &good, |shown| shown["verified"] == true).await;
    assert_eq!((&shown["id"], &shown["name"]), (&json!(provider.id), &json!("mine")));
    assert!(shown["until_ms"].as_u64().unwrap() > 1_700_000_000_000, "{shown}");
    // One that names the id in its label.
    let liar = join(&mut mesh, &["--label", &format!("provider={}", provider.id)]).await;
    let shown = provider_of(&mesh, &liar, Value::is_object).await;
    assert_eq!((&shown["verified"], &shown["reason"]), (&json!(false), &json!("no_certificate")));
    // One that has copied what the good one shows. The program would not start with that; a peer built to do so does.
    let copied = provider.path("copied");
    let (tasks, thief) = thief(&mesh, &good, &copied).await;
    let shown = provider_of(&mesh, &thief, Value::is_object).await;
    assert_eq!((&shown["verified"], &shown["reason"]), (&json!(false), &json!("other_peer")));
    assert_eq!((&shown["claimed_id"], &shown["id"]), (&json!(provider.id), &Value::Null));
    let (thief_key, _) = provider.node("thief.key");
    let (code, said) = refused(&["--key", &thief_key, "--provider-certificate", &copied]);
    assert!(code == 78 && said.contains(&format!("is for peer {good}")), "{code} {said}");
    let found = get(mesh.http, &format!("/v1/registry/nodes?provider={}", provider.id)).await.json();
    assert_eq!((&found["total"], &found["nodes"][0]["id"]), (&json!(1), &json!(good)));
    let legacy = get(mesh.http, "/v1/dnt/table").await.json();
    assert_eq!(legacy[format!("/{good}")]["provider_id"], provider.id.as_str());
    assert_eq!(legacy[format!("/{liar}")]["provider_id"], "");
    let table = printed(&["nodes", &format!("http://{}", mesh.http)]);
    let row = |id: &str| table.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(row(&good).ends_with(&provider.id), "{table}");
    assert!(row(&liar).ends_with(&format!("unverified: {}", provider.id)), "{table}");
    assert_eq!(mesh.metric("otela_registry_providers{state=\"verified\"}").await, 1.0);
    assert_eq!(mesh.metric("otela_registry_providers{state=\"unverified\"}").await, 2.0);
    tasks.stop();
}

#[tokio::test]
async fn a_certificate_from_elsewhere_counts_under_its_terms_and_is_renewed_while_the_node_runs() {
    let (provider, mut mesh) = (Provider::new(), Mesh::ingress(&[]).await);
    let (key, id) = provider.node("node.key");
    let terms = ["--mesh", "test", "--constraint", "site=cscs"];
    let file = provider.sign(&id, &[&terms[..], &["--for", "2d"]].concat());
    let shows = ["--key", &key, "--provider-certificate", &file];
    let (code, said) = refused(&shows);
    assert!(code == 78 && said.contains("label site=cscs, and this one has no such label"), "{code} {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let node = join(&mut mesh, &[&shows[..], &["--site", "cscs"]].concat()).await;
    assert_eq!(node, id);
    let first = provider_of(&mesh, &id, |shown| shown["verified"] == true).await;
    let status = printed(&["status", &mesh.nodes[0].says("registry: http://").await]);
    assert!(status.contains(&format!("provider     {}", provider.id)), "{status}");
    assert!(status.contains("provider certificate of this node ends in"), "{status}");
    provider.sign(&id, &[&terms[..], &["--for", "30d"]].concat());
    provider_of(&mesh, &id, |shown| shown["until_ms"].as_u64() > first["until_ms"].as_u64()).await;
    let both = ["--provider-key", &provider.path("provider.key")];
    let (code, said) = refused(&[&shows[..], &both].concat());
    assert!(code == 2 && said.contains("cannot be used with"), "{code} {said}");
}

#[tokio::test]
async fn a_provider_whose_key_is_revoked_is_verified_nowhere_the_mesh_file_says_so() {
    let provider = Provider::new();
    let file = provider.path("mesh.toml");
    fs::write(&file, "name = \"test\"").unwrap();
    let mut mesh = Mesh::ingress(&["--mesh-file", &file]).await;
    let key = provider.path("provider.key");
    let node = join(&mut mesh, &["--provider-key", &key]).await;
    provider_of(&mesh, &node, |shown| shown["verified"] == true).await;
    fs::write(&file, format!("name = \"test\"\n[revoked]\nkeys = [\"{}\"]\n", provider.id)).unwrap();
    let shown = provider_of(&mesh, &node, |shown| shown["verified"] == false).await;
    assert_eq!(shown["reason"], "revoked_key");
    let (code, said) = refused(&["--mesh-file", &file, "--provider-key", &key]);
    assert!(code == 78 && said.contains("the provider's key is revoked"), "{code} {said}");
    fs::write(&file, "name = \"test\"").unwrap();
    provider_of(&mesh, &node, |shown| shown["verified"] == true).await;
}

#[test]
fn what_is_said_of_a_node_can_be_checked_by_anybody() {
    let provider = Provider::new();
    let (_, id) = provider.node("node.key");
    let key = provider.path("provider.key");
    let in_dir = |arguments: &[&str]| {
        let output = Command::new(OTELA).args(arguments).current_dir(provider.dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let sign = ["sign", "--provider-of", &id, "--mesh", "lab", "--constraint", "site=cscs", "--key", &key];
    assert_eq!(in_dir(&sign).trim(), format!("{id}.provider"));
    let file = provider.path(&format!("{id}.provider"));
    let shown = printed(&["verify", "--provider", &file]);
    for part in [&provider.id, &id, "in mesh     lab", "with label  site=cscs", "verdict     good"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&format!("# of peer     {id}\n")) && text.contains("\notela-provider-1 "), "{text}");
    let mesh_file = provider.path("mesh.toml");
    let judged = |rules: &str| {
        fs::write(&mesh_file, rules).unwrap();
        let output = run(&["verify", "--provider", &file, "--mesh-file", &mesh_file]);
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(judged("name = \"lab\"").0, 0);
    for (rules, says) in [
        ("name = \"lab2\"", "is for another mesh"),
        (&format!("name = \"lab\"\n[revoked]\nkeys = [\"{}\"]", provider.id), "key is revoked"),
    ] {
        let (code, said) = judged(rules);
        assert!(code == 1 && said.contains(says), "{code} {said}");
    }
    fs::write(&file, text.replace("otela-provider-1 ", "otela-provider-1 AAAA")).unwrap();
    assert_eq!(run(&["verify", "--provider", &file]).status.code(), Some(1));
    for wrong in [
        &["sign", "--provider-of", &id, "--member", &id, "--mesh", "lab", "--key", &key][..],
        &["sign", "--mesh", "lab", "--key", &key],
        &["sign", "--constraint", "a=b", "--key", &key],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let twice = ["--constraint", "a=1", "--constraint", "a=2"];
    let output = run(&[&["sign", "--provider-of", &id, "--key", &key][..], &twice].concat());
    assert!(output.status.code() == Some(78) && String::from_utf8(output.stderr).unwrap().contains("two values"));
    let other = PathBuf::from(provider.path("mesh.toml"));
    let output = run(&["sign", "--provider-of", &id, "--key", &key, "--out", other.to_str().unwrap()]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("left alone"), "nothing else is overwritten");
}
