//! A member among neighbours who say whatever the fuzzer makes up, in their own names.
#![no_main]

#[path = "../../otela-node/src/peer/frames.rs"]
mod frames;

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use otela_fuzz::{ACCUSATION, ENTRY, key, mesh, peer, signed};
use otela_proto::{
    accusation::Accusation,
    clock::Now,
    entry::Entry,
    gossip::Outbox,
    member::{Input, Member, Output, Settings},
    wire::{AccusationBody, Entries, EntryBody, FRAME_BYTES_MAX, Frame, Say},
};
use prost::Message;
use std::time::Duration;
use tokio_util::codec::Decoder;

/// The member is the first, the others are its neighbours.
const PEERS: u8 = 4;
/// A day in spring.
const WALL_MS: u64 = 1_800_000_000_000;

fuzz_target!(|data: &[u8]| {
    let mut now = Now { mono: Duration::ZERO, wall_ms: WALL_MS };
    let mut scene = Scene { member: Member::new(key(0), Settings::new(mesh()), None, 7, now), outputs: Vec::new() };
    for n in 1..PEERS {
        scene.handle(now, Input::LinkUp { peer: peer(n), rtt: Some(Duration::from_millis(1)) });
    }
    let (mut codec, mut bytes) = (frames::codec(), BytesMut::from(data));
    let mut from = 0;
    while let Ok(Some(frame)) = codec.decode(&mut bytes) {
        from = from % (PEERS - 1) + 1;
        // A frame's length is as good as any other source of time.
        now.mono += Duration::from_millis(frame.len() as u64 * 7);
        now.wall_ms = WALL_MS + now.mono.as_millis() as u64;
        match Frame::decode(frame) {
            Ok(Frame { say: Some(Say::Entries(page)) }) => scene.handle(now, entries(from, &page, now)),
            Ok(Frame { say: Some(say) }) => scene.handle(now, Input::Say { from: peer(from), say }),
            Ok(Frame { say: None }) => scene.handle(now, Input::Tick),
            Err(_) => return,
        }
        while scene.member.wake_at() <= now.mono {
            let before = scene.member.wake_at();
            scene.handle(now, Input::Tick);
            assert!(scene.member.wake_at() > before || scene.member.wake_at() > now.mono, "a timer that never ends");
        }
    }
    scene.handle(now, Input::Leave);
});

struct Scene {
    member: Member,
    outputs: Vec<Output>,
}

impl Scene {
    fn handle(&mut self, now: Now, input: Input) {
        self.member.handle(now, input, &mut self.outputs);
        let mut outbox = Outbox::default();
        for output in self.outputs.drain(..) {
            if let Output::Send { parcel, .. } = output {
                outbox.push(parcel);
            }
        }
        while let Some(frame) = outbox.pop() {
            assert!(frame.encoded_len() <= FRAME_BYTES_MAX, "a frame that nobody would read");
        }
        let own = self.member.registry().get(&self.member.session().peer);
        let rank = own.map(|entry| entry.rank());
        assert!(rank.is_none_or(|rank| rank.epoch <= self.member.session().epoch), "overtaken and not noticed");
        let _ = self.member.view(now, 1);
    }
}

/// Whoever the fuzzer names as signer of a statement is made to sign it, if it is one of us.
fn entries(from: u8, page: &Entries, now: Now) -> Input {
    let number = |id: &[u8]| (0..PEERS).find(|n| peer(*n).to_bytes() == id).unwrap_or(from);
    let entry = |bytes: &Bytes| {
        let mut body = EntryBody::decode(bytes.clone()).ok()?;
        let owner = number(&body.owner);
        body.owner = peer(owner).to_bytes();
        Entry::open(&signed(ENTRY, &key(owner), body.encode_to_vec()), &mesh(), now.wall_ms).ok()
    };
    let accusation = |bytes: &Bytes| {
        let mut body = AccusationBody::decode(bytes.clone()).ok()?;
        let accuser = number(&body.accuser);
        body.accuser = peer(accuser).to_bytes();
        // A subject that is nobody says nothing about how accusations are taken.
        body.subject = peer(number(&body.subject)).to_bytes();
        Accusation::open(&signed(ACCUSATION, &key(accuser), body.encode_to_vec()), &mesh(), now.wall_ms).ok()
    };
    Input::Entries {
        from: peer(from),
        entries: page.signed.iter().filter_map(entry).collect(),
        accusations: page.accusations.iter().filter_map(accusation).collect(),
    }
}
