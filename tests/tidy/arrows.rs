//! Which modules may name which: the walls inside a crate, and the doors between crates.
//!
//! The walls hold for unit tests too; tests outside `src/` may use whatever is public.

use crate::{
    paths::named,
    source::{Offence, Source},
};

/// From a crate, only these modules of another crate may be named.
struct Door {
    from: &'static str,
    to: &'static str,
    modules: &'static [&'static str],
}

const DOORS: &[Door] = &[
    Door { from: "otela_ingress", to: "otela_node", modules: &["peer", "tasks", "telemetry"] },
    Door { from: "otela_sched", to: "otela_node", modules: &["peer", "tasks", "telemetry"] },
];

/// Inside a crate, the modules of one side never name those of the other.
struct Wall {
    inside: &'static str,
    from: &'static [&'static str],
    never: &'static [&'static str],
    instead: &'static str,
}

const WALLS: &[Wall] = &[
    Wall {
        inside: "otela_node",
        from: &["tasks", "telemetry"],
        never: &["peer", "agent", "engine"],
        instead: "everybody uses this module, so it may use nobody: take what it needs as an argument",
    },
    Wall {
        inside: "otela_node",
        from: &["peer"],
        never: &["agent", "engine"],
        instead: "a peer knows nothing of engines: let the agent hand it in, as a value or a trait of peer's own",
    },
    Wall {
        inside: "otela_node",
        from: &["engine"],
        never: &["agent"],
        instead: "an engine does not know its supervisor: return a value or send an event",
    },
    Wall {
        inside: "otela_sched",
        from: &["catalog", "sim", "calibrate", "scenario", "place", "scale", "evolve", "plan"],
        never: &["controller", "actuator", "view", "engine"],
        instead: "the pure half does no I/O: take the observation as an argument and return the decision",
    },
];

/// Wrong arrows between modules.
pub(crate) fn check(source: &Source) -> Vec<Offence> {
    let Some((name, module)) = source.module() else { return Vec::new() };
    let mut offences = Vec::new();
    for path in named(source) {
        let [to, rest @ ..] = path.segments.as_slice() else { continue };
        let target = rest.first().map_or("", String::as_str);
        for door in DOORS.iter().filter(|door| door.from == name && door.to == to && !door.modules.contains(&target)) {
            let open = door.modules.join(", ");
            let instead = format!("of {to} only {{{open}}} may be named here: move what is needed there");
            offences.push(source.offence(path.line, format!("{name} names `{}`", path.text()), instead));
        }
        let Some(from) = module.first().filter(|_| *to == name) else { continue };
        for wall in WALLS
            .iter()
            .filter(|wall| wall.inside == name && wall.from.contains(&from.as_str()) && wall.never.contains(&target))
        {
            offences.push(source.offence(path.line, format!("`{from}` names `{}`", path.text()), wall.instead));
        }
    }
    offences
}

#[test]
fn walls_and_doors_hold() {
    let offences = |path: &str, text: &str| check(&crate::source::sample(path, text)).len();
    assert_eq!(offences("otela-node/src/peer/swarm.rs", "use crate::agent::serve::Serve;"), 1);
    assert_eq!(offences("otela-node/src/peer/mod.rs", "use super::engine::Engine;"), 1);
    assert_eq!(offences("otela-node/src/peer/mod.rs", "fn f() { log!(crate::engine::port()); }"), 1);
    assert_eq!(offences("otela-node/src/engine/process.rs", "use crate::{agent::Agent, tasks::Tasks};"), 1);
    assert_eq!(offences("otela-node/src/telemetry.rs", "use crate::peer::Peer;"), 1);
    assert_eq!(offences("otela-node/src/agent/mod.rs", "use crate::{engine::Engine, peer::Peer};"), 0);
    assert_eq!(offences("otela-ingress/src/forward.rs", "use otela_node::{agent::Agent, peer::Peer};"), 1);
    assert_eq!(offences("otela-ingress/src/forward.rs", "use otela_node as node;"), 1);
    assert_eq!(offences("otela-sched/src/view.rs", "use otela_node::{telemetry, tasks::Tasks};"), 0);
    assert_eq!(offences("otela-sched/src/place/solver.rs", "use crate::actuator::Actuator;"), 1);
    assert_eq!(offences("otela-sched/src/actuator/slurm.rs", "use crate::plan::Plan;"), 0);
    assert_eq!(offences("tests/system/main.rs", "use otela_node::agent::Agent;"), 0);
}
