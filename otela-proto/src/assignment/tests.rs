use super::*;
use crate::{
    id::{Epoch, MeshName, Session},
    wire::Signed,
};
use libp2p_identity::{Keypair, PeerId};
use proptest::prelude::*;
use prost::Message;

fn key(n: u8) -> Keypair {
    Keypair::ed25519_from_bytes([n; 32]).unwrap()
}

fn peer(n: u8) -> PeerId {
    key(n).public().to_peer_id()
}

fn mesh(name: &str) -> MeshName {
    name.parse().unwrap()
}

fn work(model: &str) -> Work {
    Work { template: "vllm".into(), model: model.into(), tensor_parallel: 2, data_parallel: 1 }
}

fn directive(work: Option<Work>) -> Directive {
    let to = Session { peer: peer(1), epoch: Epoch(7) };
    Directive { to, ticket: Ticket { generation: 3, scheduler: peer(2), plan: 9 }, work }
}

#[test]
fn a_directive_reads_as_it_was_signed_and_only_for_its_mesh_and_signer() {
    for sent in [directive(Some(work("Qwen/Qwen2.5-7B-Instruct"))), directive(None)] {
        let bytes = sent.sign(&key(2), &mesh("lab")).unwrap().encode_to_vec();
        assert_eq!(Directive::open(&bytes, &mesh("lab")), Ok(sent.clone()));
        assert_eq!(Directive::open(&bytes, &mesh("other")), Err(Invalid::BadSignature));
        let forged = sent.sign(&key(3), &mesh("lab")).unwrap().encode_to_vec();
        assert_eq!(Directive::open(&forged, &mesh("lab")), Err(Invalid::BadSignature));
    }
    let long = vec![0; DIRECTIVE_BYTES_MAX + 1];
    assert_eq!(Directive::open(&long, &mesh("lab")), Err(Invalid::TooLarge));
}

#[test]
fn names_that_could_be_options_or_ways_out_are_refused_on_both_sides() {
    for bad in ["", "--trust-remote-code", "../../etc/passwd", "a/../b", "a b", "a;b", "$(a)", "`a`", "a\nb", "\u{e4}"]
    {
        assert_eq!(work(bad).check(), Err(Invalid::BadName), "{bad:?}");
        assert_eq!(directive(Some(work(bad))).sign(&key(2), &mesh("lab")), Err(Invalid::BadName));
    }
    for good in ["m", "Qwen/Qwen2.5-7B", "mesh:7b@q4_0", "a..b/c++"] {
        assert_eq!(work(good).check(), Ok(()), "{good:?}");
    }
    let many = Work { data_parallel: 1_000, tensor_parallel: 1_000, ..work("m") };
    assert_eq!(many.check(), Err(Invalid::BadNumber));
    assert_eq!(Work { tensor_parallel: 0, ..work("m") }.check(), Err(Invalid::BadNumber));
}

proptest! {
    #[test]
    fn damaged_directives_are_never_taken(at in 0..400_usize, flip in 1..=255_u8) {
        let mut bytes = directive(Some(work("m"))).sign(&key(2), &mesh("lab")).unwrap().encode_to_vec();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let same = Signed::decode(&*bytes).is_ok_and(|signed| {
            signed == directive(Some(work("m"))).sign(&key(2), &mesh("lab")).unwrap()
        });
        prop_assert_eq!(Directive::open(&bytes, &mesh("lab")).is_ok(), same);
    }

    #[test]
    fn of_all_that_claim_one_is_first(claims in prop::collection::btree_map(0..9_u8, 1..4_u64, 1..6)) {
        let all: Vec<(PeerId, u64)> = claims.iter().map(|(n, generation)| (peer(*n), *generation)).collect();
        let first = all.iter().filter(|(me, mine)| {
            let others: Vec<_> = all.iter().copied().filter(|(peer, _)| peer != me).collect();
            standing(*me, Some(*mine), &others, 3) == Standing::First
        });
        prop_assert_eq!(first.count(), 1);
    }
}

#[test]
fn a_claim_is_above_all_that_were_heard_of() {
    assert_eq!(standing(peer(1), None, &[], 4), Standing::Free(5));
    assert_eq!(standing(peer(1), None, &[(peer(2), 1)], 4), Standing::Behind(peer(2)));
    assert_eq!(standing(peer(1), Some(5), &[(peer(2), 4)], 5), Standing::First);
    assert_eq!(standing(peer(1), Some(5), &[(peer(2), 6)], 6), Standing::Behind(peer(2)));
}

#[test]
fn tickets_are_ordered_by_generation_first() {
    let ticket = |generation, scheduler, plan| Ticket { generation, scheduler: peer(scheduler), plan };
    assert!(ticket(2, 1, 1) > ticket(1, 2, 9));
    assert!(ticket(2, 1, 2) > ticket(2, 1, 1));
    assert_eq!(ticket(2, 1, 9) > ticket(2, 2, 1), peer(1) > peer(2), "one of the two has the generation");
}

#[test]
fn templates_say_which_models_they_start() {
    let template = |models: &[&str]| OfferedTemplate {
        name: "t".into(),
        models: models.iter().map(|model| (*model).to_owned()).collect(),
    };
    assert!(template(&[]).allows("any"));
    assert!(template(&["a", "Qwen/*"]).allows("Qwen/Qwen3-8B"));
    assert!(!template(&["a", "Qwen/*"]).allows("ab"));
    let offer = Offer { templates: vec![template(&["a"]), template(&["b*"])], schedulers: Vec::new() };
    assert!(offer.template_for("bc").is_some() && offer.template_for("c").is_none());
}
