//! Private meshes: what is said counts of members only, wherever it is heard.

use super::*;
use crate::{
    accusation::Charge,
    admission::{Membership, Rules, Validity},
};
use prost::Message;

const AUTHORITY: (u8, u64) = (9, 0);

fn rules() -> Rules {
    let mut rules = Rules::open(mesh_name());
    rules.authorities.insert(key(AUTHORITY.0, AUTHORITY.1).public().to_peer_id());
    rules
}

/// An encoded membership of `member` that counts for so long from the beginning of the test.
fn membership(member: &PeerId, lasts: Duration) -> Vec<u8> {
    let validity = Validity { from_ms: WALL_MS, until_ms: WALL_MS + millis(lasts) };
    let signed = Membership::sign(&key(AUTHORITY.0, AUTHORITY.1), &mesh_name(), member, validity).unwrap();
    signed.encode_to_vec()
}

impl Mesh {
    /// A mesh whose members keep the same rules and show what makes them members, for so long.
    fn private(n: usize, lasts: Duration) -> Self {
        let mut mesh = Self::new(n, 3);
        for i in 0..n {
            mesh.admit(i, rules(), membership(&mesh.id(i), lasts));
        }
        mesh.run(Duration::from_secs(30));
        assert!(mesh.know(n) && mesh.all_equal(), "{:?}", mesh.log);
        mesh.log.clear();
        mesh
    }

    fn admit(&mut self, i: usize, rules: Rules, membership: Vec<u8>) {
        self.input(i, Input::Admission(Box::new(rules), membership));
    }

    /// Whether each knows so many.
    fn know(&self, n: usize) -> bool {
        self.members.iter().all(|member| member.registry.len() == n)
    }

    /// Refusals for `reason`, at all members together.
    fn refused(&self, reason: &str) -> usize {
        let is_it = |output: &Output| matches!(output, Output::Refused { reason: why, .. } if *why == reason);
        self.log.iter().filter(|(_, output)| is_it(output)).count()
    }
}

/// What a member makes up: peers with keys that no authority has signed, or has signed for other keys.
fn minted(membership: &[u8], count: u64) -> Vec<(Keypair, Entry)> {
    let mint = |i| {
        let key = key(6, i);
        let rank = Rank { epoch: Epoch(WALL_MS), lifecycle: Lifecycle::Serving, version: 1 };
        let payload = Payload { membership: membership.to_vec(), ..Payload::default() };
        let draft = Draft { rank, issued_at_ms: WALL_MS, payload };
        let entry = Entry::sign(&key, &mesh_name(), draft).unwrap();
        (key, entry)
    };
    (0..count).map(mint).collect()
}

#[test]
fn f2_keys_that_no_authority_has_signed_have_no_entry_and_no_vote() {
    let mut mesh = Mesh::private(4, Duration::from_hours(20));
    let (from, victim) = (mesh.id(1), mesh.id(3));
    // Of nobody, of another key, and of the liar itself.
    let theirs = membership(&mesh.id(2), Duration::from_hours(20));
    let own = membership(&from, Duration::from_hours(20));
    for (shown, reason) in
        [(Vec::new(), "not_a_member"), (theirs, "bad_membership"), (own, "bad_membership"), (vec![1], "bad_membership")]
    {
        let minted = minted(&shown, 100);
        let rank = mesh.members[0].registry.rank(&victim).unwrap();
        let charge = Charge { subject: victim, epoch: rank.epoch, version: rank.version, verdict: Verdict::Evict };
        let vote = |key| Accusation::sign(key, &mesh_name(), charge, WALL_MS).unwrap();
        let accusations = minted.iter().map(|(key, _)| vote(key)).collect();
        let entries = minted.into_iter().map(|(_, entry)| entry).collect();
        mesh.log.clear();
        mesh.input(0, Input::Entries { from, entries, accusations });
        assert_eq!((mesh.refused(reason), mesh.refused("unknown_accuser")), (100, 100), "{reason}");
    }
    mesh.run(Duration::from_secs(20));
    assert!(mesh.know(4) && mesh.all_equal());
    assert!(mesh.members.iter().all(|member| member.belief(&victim) == Belief::Alive));
}

#[test]
fn what_a_revoked_peer_has_said_is_let_go_of_and_counts_again_when_it_is_welcome_again() {
    let mut mesh = Mesh::private(5, Duration::from_hours(20));
    let (revoked, victim) = (mesh.id(4), mesh.id(3));
    let rank = mesh.members[0].registry.rank(&victim).unwrap();
    let charge = Charge { subject: victim, epoch: rank.epoch, version: rank.version, verdict: Verdict::Suspect };
    let accusation = Accusation::sign(&mesh.keys[4].clone(), &mesh_name(), charge, WALL_MS).unwrap();
    mesh.input(0, Input::Entries { from: revoked, entries: Vec::new(), accusations: vec![accusation] });
    assert_eq!(mesh.members[0].registry.accusations(&victim).len(), 1);
    let strict = Rules { revoked_peers: [revoked].into(), ..rules() };
    for i in 0..4 {
        let shown = membership(&mesh.id(i), Duration::from_hours(20));
        mesh.admit(i, strict.clone(), shown);
        let registry = &mesh.members[i].registry;
        assert!(registry.get(&revoked).is_none() && registry.accusations(&victim).is_empty(), "at once");
    }
    mesh.input(4, Input::Announce(Box::new(Announcement { draining: true, ..serving() })));
    mesh.run(Duration::from_secs(20));
    assert!(mesh.refused("revoked_peer") > 0 && mesh.members[..4].iter().all(|m| m.registry.get(&revoked).is_none()));
    for i in 0..4 {
        let shown = membership(&mesh.id(i), Duration::from_hours(20));
        mesh.admit(i, rules(), shown);
    }
    mesh.run(Duration::from_secs(60));
    assert!(mesh.know(5) && mesh.all_equal(), "nothing stands in its way");
}

#[test]
fn a_membership_that_ends_ends_what_its_peer_says_and_a_renewed_one_goes_on() {
    let mut mesh = Mesh::private(4, Duration::from_hours(20));
    let short = Duration::from_mins(10);
    let brief = membership(&mesh.id(3), short);
    mesh.admit(3, rules(), brief);
    mesh.run(Duration::from_mins(5));
    assert!(mesh.know(4), "it counts as long as it lasts");
    mesh.run(Duration::from_mins(10));
    let ended = mesh.id(3);
    assert!(mesh.members[..3].iter().all(|member| member.registry.get(&ended).is_none()));
    let renewed = membership(&ended, Duration::from_hours(20));
    mesh.admit(3, rules(), renewed);
    mesh.run(Duration::from_secs(60));
    assert!(mesh.know(4) && mesh.all_equal());
}
