//! Which crates and functions may be named where, whatever the manifests allow.

use crate::{
    paths::{Named, named},
    source::{Offence, Source},
};

/// Crates that bring sockets, timers or threads with them.
const DOES_IO: &[&str] =
    &["async_std", "axum", "futures_timer", "hyper", "hyper_util", "libp2p", "mio", "reqwest", "tokio", "tokio_util"];

const SOCKETS: &[&str] = &["TcpStream", "TcpListener", "UdpSocket", "UnixStream", "UnixListener", "UnixDatagram"];

const CLOCKS: &[&[&str]] = &[&["Instant", "now"], &["SystemTime", "now"]];

const ENVIRONMENT: &[&[&str]] = &[&["env", "var"], &["env", "var_os"], &["env", "vars"], &["env", "vars_os"]];

/// Names that stand where they may not.
pub(crate) fn check(source: &Source) -> Vec<Offence> {
    named(source)
        .iter()
        .filter_map(|path| {
            let instead = wrong_place(&source.path, path)?;
            Some(source.offence(path.line, format!("`{}` is named here", path.text()), instead))
        })
        .collect()
}

/// What to do instead, if `path` may not be named in `file`.
fn wrong_place(file: &str, path: &Named) -> Option<&'static str> {
    let first = path.segments.first().map_or("", String::as_str);
    let ends_in = |tails: &[&[&str]]| tails.iter().any(|tail| path.ends_with(tail));
    if file.starts_with("otela-proto/src/") {
        if DOES_IO.contains(&first) {
            return Some("otela-proto does no I/O: return an action and let otela-node do it");
        }
        if path.segments.iter().any(|segment| SOCKETS.contains(&segment.as_str())) {
            return Some("otela-proto opens no sockets: take bytes as arguments, return bytes");
        }
        if ends_in(CLOCKS) {
            return Some("time is an argument in otela-proto");
        }
    }
    if first == "anyhow" && file != "src/main.rs" {
        return Some("only src/main.rs may drop an error's type: use a thiserror enum of the module");
    }
    let in_command_line = file.starts_with("src/");
    if first == "clap" && !in_command_line {
        return Some("only the command line under src/ knows flags: take a validated config");
    }
    if ends_in(ENVIRONMENT) && !in_command_line && !path.excused {
        return Some("the environment is read under src/ only: take the value as an argument");
    }
    None
}

#[test]
fn names_in_the_wrong_place_are_found() {
    let offences = |path: &str, text: &str| check(&crate::source::sample(path, text)).len();
    let proto = "otela-proto/src/registry/mod.rs";
    assert_eq!(offences(proto, "use tokio::sync::mpsc;"), 1);
    assert_eq!(offences(proto, "use std::net::{IpAddr, TcpStream};"), 1);
    assert_eq!(offences(proto, "fn f() { let _ = std::time::Instant::now(); }"), 1);
    assert_eq!(offences(proto, "use std::time::SystemTime; fn f() { SystemTime::now(); }"), 1);
    assert_eq!(offences(proto, "use std::{net::SocketAddr, time::Duration};"), 0);
    assert_eq!(offences("otela-node/src/peer/mod.rs", "fn f() { std::time::Instant::now(); }"), 0);
    assert_eq!(offences("src/start.rs", "fn f() -> anyhow::Result<()> { Ok(()) }"), 1);
    assert_eq!(offences("src/main.rs", "fn f() -> anyhow::Result<()> { Ok(()) }"), 0);
    assert_eq!(offences("otela-ingress/src/config.rs", "#[derive(clap::Args)] struct Flags;"), 1);
    assert_eq!(offences("src/flags.rs", "#[derive(clap::Args)] struct Flags;"), 0);
}

#[test]
fn the_environment_is_read_in_one_place() {
    let offences = |path: &str, text: &str| check(&crate::source::sample(path, text)).len();
    let read = "fn f() { std::env::var(\"A\"); }";
    assert_eq!(offences("otela-node/src/agent/mod.rs", read), 1);
    assert_eq!(offences("otela-node/src/agent/mod.rs", "use std::env; fn f() { env::var_os(\"A\"); }"), 1);
    assert_eq!(offences("tests/system/main.rs", read), 1);
    assert_eq!(offences("src/config.rs", read), 0);
    let excused = format!("#[expect(clippy::disallowed_methods, reason = \"a test has no flags\")] {read}");
    assert_eq!(offences("tests/system/main.rs", &excused), 0);
}
