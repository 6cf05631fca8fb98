//! Bytes that come from a peer are a sign of life, whatever carries them.

use super::*;

/// What the others believe of the last of five when it answers no frame for so long, while its streams go on or not.
fn beliefs(streams: bool, lasts: Duration) -> Vec<Belief> {
    let mut mesh = Mesh::new(5, 4);
    let last = mesh.id(4);
    mesh.silent[4] = true;
    for _ in 0..lasts.as_millis() / 200 {
        mesh.run(Duration::from_millis(200));
        for i in (0..4).filter(|_| streams) {
            mesh.input(i, Input::Traffic(vec![last]));
        }
    }
    let is_closed = |output: &Output| matches!(output, Output::Close(peer) if *peer == last);
    assert!(!streams || !mesh.log.iter().any(|(_, output)| is_closed(output)), "streams run over it");
    mesh.members[..4].iter().map(|member| member.belief(&last)).collect()
}

#[test]
fn who_answers_no_probe_while_its_streams_go_on_lives() {
    let lasts = Duration::from_secs(30);
    assert!(beliefs(true, lasts).iter().all(|belief| *belief == Belief::Alive));
    assert!(beliefs(false, lasts).iter().all(|belief| matches!(belief, Belief::Evicted(_))));
}
