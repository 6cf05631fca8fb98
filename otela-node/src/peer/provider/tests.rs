use super::{follow::Follower, *};
use crate::{
    peer::{Peer, PeerConfig, admission::armor, tests::until},
    tasks::Tasks,
    telemetry::{Metrics, chain},
};
use libp2p::identity::Keypair;
use otela_proto::provider::{Provider, ProviderId};
use std::fs;
use tempfile::TempDir;

const DAY_MS: u64 = 86_400_000;

/// A provider, one of its nodes, and a directory.
struct Scene {
    dir: TempDir,
    key: Keypair,
    subject: Subject,
    rules: ProviderRules,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = Identity::load_or_create(&dir.path().join("key")).unwrap().keypair().clone();
        let labels = [("site".to_owned(), "cscs".to_owned())].into();
        let subject = Subject { peer: PeerId::random(), labels };
        Self { dir, key, subject, rules: ProviderRules::new("lab".parse().unwrap()) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn terms(&self, until_ms: u64) -> Terms {
        let (subject, mesh) = (self.subject.peer, Some(self.rules.mesh.clone()));
        Terms { subject, mesh, constraints: self.subject.labels.clone(), validity: Validity { from_ms: 0, until_ms } }
    }

    /// Writes a certificate to be found in the file `certificate`.
    fn write(&self, terms: &Terms) -> Vec<u8> {
        let signed = ProviderCertificate::sign(&self.key, terms).unwrap();
        fs::write(self.path("certificate"), armor(Kind::Provider, &[], &signed)).unwrap();
        signed.encode_to_vec()
    }

    fn load(&self) -> Result<ProviderSettings, ProviderError> {
        ProviderSettings::with_certificate(&self.path("certificate"), self.subject.clone(), &self.rules)
    }
}

#[test]
fn a_certificate_that_would_not_count_is_told_before_the_start() {
    let mut scene = Scene::new();
    let now_ms = unix_ms();
    let good = scene.terms(now_ms + DAY_MS);
    let bytes = scene.write(&good);
    assert_eq!(scene.load().unwrap().certificate(), bytes);
    let other = PeerId::random();
    let (missing, site) = (scene.path("nowhere"), |site: &str| [("site".to_owned(), site.to_owned())].into());
    for (terms, says) in [
        (Terms { subject: other, ..good.clone() }, format!("is for peer {other}, and this peer is")),
        (Terms { constraints: site("eth"), ..good.clone() }, "label site=eth, and this one has site=cscs".to_owned()),
        (Terms { mesh: Some("lab2".parse().unwrap()), ..good.clone() }, "is for another mesh".to_owned()),
        (scene.terms(now_ms - 1), "has expired".to_owned()),
        (
            Terms { validity: Validity { from_ms: now_ms + DAY_MS, until_ms: u64::MAX }, ..good.clone() },
            "is not valid yet".to_owned(),
        ),
    ] {
        scene.write(&terms);
        let error = chain(&scene.load().unwrap_err());
        assert!(error.contains(&says) && !error.contains('\n'), "{says}: {error}");
    }
    let anywhere = Terms { mesh: None, ..good.clone() };
    scene.write(&anywhere);
    assert!(scene.load().is_ok());
    scene.subject.labels.clear();
    let error = chain(&scene.load().unwrap_err());
    assert!(error.contains("this one has no such label"), "{error}");
    fs::write(scene.path("certificate"), "hello").unwrap();
    assert!(chain(&scene.load().unwrap_err()).contains("otela-provider-1"));
    let error = ProviderSettings::with_certificate(&missing, scene.subject.clone(), &scene.rules).unwrap_err();
    assert!(chain(&error).contains("there is no file"), "{error}");
}

#[test]
fn with_the_key_a_certificate_is_made_and_made_again_before_it_ends() {
    let mut scene = Scene::new();
    let with_key = |scene: &Scene| ProviderSettings::with_key(&scene.path("key"), scene.subject.clone(), &scene.rules);
    let settings = with_key(&scene).unwrap();
    let verify = |bytes: &[u8], now_ms| {
        let certificate = ProviderCertificate::open(bytes).unwrap();
        certificate.verify(&scene.subject.peer, &BTreeMap::new(), &scene.rules, now_ms)
    };
    let (now_ms, provider) = (unix_ms(), ProviderId::of(&scene.key).unwrap());
    let first = settings.certificate();
    assert_eq!(verify(&first, now_ms), Ok(provider));
    assert_eq!(verify(&first, now_ms - 3_600_000), Ok(provider), "others' clocks may be behind");
    let mut follower = Follower::new(settings);
    assert_eq!(follower.look(&scene.rules, now_ms + 60_000), None, "it lasts");
    let mut last = first;
    for day in 1..=10 {
        let then_ms = now_ms + day * (DAY_MS + 60_000);
        assert_eq!(verify(&last, then_ms), Ok(provider), "day {day}: there is never none");
        last = follower.look(&scene.rules, then_ms).expect("it ends in two days");
        assert_eq!(follower.look(&scene.rules, then_ms), None);
    }
    let set_back = follower.look(&scene.rules, now_ms).expect("it would begin in days");
    assert_eq!(verify(&set_back, now_ms), Ok(provider));
    scene.rules.revoked_keys.insert(scene.key.public().to_peer_id());
    let error = chain(&with_key(&scene).unwrap_err());
    assert!(error.contains("key is revoked"), "{error}");
    let nobody = ProviderSettings::with_key(&scene.path("none"), scene.subject.clone(), &scene.rules).unwrap_err();
    assert!(chain(&nobody).contains("make one with `otela key"), "{nobody}");
}

#[test]
fn a_renewed_file_is_taken_over_and_a_wrong_one_is_not() {
    let mut scene = Scene::new();
    let now_ms = unix_ms();
    scene.write(&scene.terms(now_ms + DAY_MS));
    let mut follower = Follower::new(scene.load().unwrap());
    assert_eq!(follower.look(&scene.rules, now_ms), None, "it is shown already");
    let renewed = scene.write(&scene.terms(now_ms + 2 * DAY_MS));
    assert_eq!(follower.look(&scene.rules, now_ms), Some(renewed));
    assert_eq!(follower.look(&scene.rules, now_ms), None);
    let other = Terms { subject: PeerId::random(), ..scene.terms(now_ms + 3 * DAY_MS) };
    scene.write(&other);
    assert_eq!(follower.look(&scene.rules, now_ms), None, "somebody else's");
    fs::write(scene.path("certificate"), "rubbish").unwrap();
    assert_eq!(follower.look(&scene.rules, now_ms), None);
    fs::remove_file(scene.path("certificate")).unwrap();
    assert_eq!(follower.look(&scene.rules, now_ms), None);
    let last = scene.write(&scene.terms(now_ms + 4 * DAY_MS));
    assert_eq!(follower.look(&scene.rules, now_ms), Some(last));
    scene.rules.revoked_keys.insert(scene.key.public().to_peer_id());
    scene.write(&scene.terms(now_ms + 5 * DAY_MS));
    assert_eq!(follower.look(&scene.rules, now_ms), None, "by a key that does not count any more");
}

#[tokio::test]
async fn a_certificate_ends_in_the_middle_of_a_peer_s_life() {
    let mut scene = Scene::new();
    let identity = Identity::ephemeral();
    scene.subject.peer = identity.keypair().public().to_peer_id();
    scene.subject.labels.clear();
    scene.write(&scene.terms(unix_ms() + 2_000));
    let tasks = Tasks::new();
    let config = PeerConfig {
        provider: Some(scene.load().unwrap()),
        ..PeerConfig::new(scene.rules.mesh.clone(), identity, vec![])
    };
    let (peer, _) = Peer::start(config, &tasks, &Metrics::new()).await.unwrap();
    let expected = Provider::Unverified { claimed: Some(ProviderId::of(&scene.key).unwrap()), why: Unproven::Expired };
    until(&peer, "nothing but time has passed", |view| {
        view.node(&peer.id()).is_some_and(|node| node.provider == expected)
    })
    .await;
    tasks.stop();
}
