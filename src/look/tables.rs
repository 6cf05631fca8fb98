//! Answers as aligned text without colours: the same on a terminal, in a pipe and with `NO_COLOR`.

use super::plain::cell;
use comfy_table::{CellAlignment, Table};
use serde_json::Value;

/// Names shown in one cell; how many more there are is told.
const NAMES_MAX: usize = 3;
/// Connections whose addresses are shown; `--json` has all.
const CONNECTIONS_MAX: usize = 8;

pub(super) fn nodes(nodes: &Value) -> String {
    let mut table = headed(["NODE", "SAYS", "BELIEVED", "ROLES", "GPUS", "MODELS", "HOST", "PROVIDER"]);
    for node in elements(nodes) {
        let accelerators = elements(&node["hardware"]["accelerators"]);
        let gpus = accelerators.map(|a| format!("{}x {}", number(&a["count"]), text(&a["kind"]))).collect();
        let services = || elements(&node["services"]);
        let models = services().flat_map(|service| elements(&service["models"])).map(|m| text(&m["id"])).collect();
        table.add_row([
            text(&node["id"]),
            says(node),
            believed(&node["belief"]),
            names(elements(&node["roles"]).map(text).collect()),
            names(gpus),
            names(models),
            text(&node["hardware"]["hostname"]),
            provider(&node["provider"]),
        ]);
    }
    lines(&table)
}

fn says(node: &Value) -> String {
    let lifecycle = text(&node["lifecycle"]);
    let loading = elements(&node["services"]).find_map(|service| service["loading"].as_str());
    match loading {
        _ if node["draining"] == true => format!("{lifecycle}, draining"),
        Some(stage) => format!("{lifecycle}, {}", cell(stage)),
        None => lifecycle,
    }
}

fn believed(belief: &Value) -> String {
    let state = text(&belief["state"]);
    match elements(&belief["accusations"]).count() {
        0 => state,
        accusers => format!("{state}, accused by {accusers}"),
    }
}

/// The id of one that is proven, as it is to be copied; of others what they are called, and that it is not proven.
fn provider(provider: &Value) -> String {
    match provider["verified"].as_bool() {
        None => String::new(),
        Some(true) => text(&provider["id"]),
        Some(false) => format!("unverified: {}", text(&provider["name"])).trim_end_matches([':', ' ']).to_owned(),
    }
}

pub(super) fn models(models: &Value) -> String {
    let mut table = headed(["MODEL", "READY", "UNREADY", "CONTEXT", "ENGINES"]);
    for model in elements(models) {
        let replicas = || elements(&model["replicas"]);
        // What every replica can do.
        let context = replicas().filter_map(|replica| replica["context_length"].as_u64()).min();
        let engine = |replica: &Value| format!("{} {}", text(&replica["engine"]), text(&replica["engine_version"]));
        table.add_row([
            text(&model["id"]),
            number(&model["ready"]),
            number(&model["unready"]),
            context.map_or_else(String::new, |tokens| tokens.to_string()),
            names(replicas().map(|replica| engine(replica).trim().to_owned()).collect()),
        ]);
    }
    right(&mut table, 1..=3);
    lines(&table)
}

pub(super) fn status(status: &Value) -> String {
    let mut table = Table::new();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("peer", text(&status["id"]));
    row("session", text(&status["session"]));
    row("mesh", text(&status["mesh"]));
    row("roles", names(elements(&status["roles"]).map(text).collect()));
    row("says", text(&status["lifecycle"]));
    row("software", text(&status["software"]));
    if status["provider"].is_object() {
        row("provider", provider(&status["provider"]));
    }
    let is_alone = elements(&status["connections"]).next().is_none();
    row("joined", joined(status["joined"] == true, is_alone && elements(&status["troubles"]).next().is_some()));
    let nodes = &status["nodes"];
    row("nodes", format!("{} listed, {} departed", number(&nodes["listed"]), number(&nodes["departed"])));
    row("they say", counts(&nodes["by_lifecycle"]));
    row("believed", counts(&nodes["by_belief"]));
    let models = &status["models"];
    row("models", format!("{} ready, {} unready", number(&models["ready"]), number(&models["unready"])));
    let cut_off = is_alone && elements(&status["troubles"]).next().is_some();
    row("reachable", if cut_off { "no, nobody is connected".to_owned() } else { reach(&status["reach"]) });
    for address in elements(&status["addresses"]) {
        row("announced", whole(address));
    }
    for left in elements(&status["reach"]["left_out"]) {
        row("left out", left_out(left));
    }
    row("connections", connections(&status["connections"]));
    for connection in elements(&status["connections"]).take(CONNECTIONS_MAX) {
        row("connected", format!("{} {}", whole(&connection["path"]), whole(&connection["address"])));
    }
    for trouble in elements(&status["troubles"]) {
        row("trouble", format!("{}: {}", whole(&trouble["bootstrap"]), whole(&trouble["error"])));
    }
    row("admits", admits(&status["admission"]));
    for refused in elements(&status["refused"]) {
        let count = number(&refused["count"]);
        row("refused", format!("{count} {}: {}", text(&refused["what"]), text(&refused["reason"])));
    }
    for warning in elements(&status["warnings"]) {
        // A sentence is not to be cut.
        row("warning", whole(&warning["message"]));
    }
    lines(&table)
}

fn joined(joined: bool, is_alone: bool) -> String {
    match (joined, is_alone) {
        (true, false) => "yes",
        (true, true) => "yes, and not connected now",
        (false, _) => "not yet",
    }
    .to_owned()
}

/// Whom the mesh admits.
fn admits(admission: &Value) -> String {
    match (admission["require_signed"] == true, admission["members_only"] == true) {
        (true, true) => "members with signed binaries",
        (true, false) => "signed binaries",
        (false, true) => "members",
        (false, false) => "everybody who names the mesh",
    }
    .to_owned()
}

/// What `otela probe` has tried and measured.
pub(crate) fn probe(probe: &Value) -> String {
    let mut table = Table::new();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("peer", text(&probe["peer"]));
    for tried in elements(&probe["tried"]) {
        let became = match tried["error"].as_str() {
            Some(error) => super::plain::text(error),
            None => format!("reached after {} ms", decimal(&tried["after_ms"])),
        };
        row("tried", format!("{}: {became}", whole(&tried["address"])));
    }
    let punch = &probe["hole_punch"];
    row(
        "hole punch",
        match punch["result"].as_str().unwrap_or_default() {
            "not_needed" => "not needed: an address of its own leads there".to_owned(),
            "no_relay" => "cannot be tried: no relay leads there".to_owned(),
            "found" => format!("a direct way after {} ms", decimal(&punch["after_ms"])),
            _ => format!("no direct way within {} ms", decimal(&punch["after_ms"])),
        },
    );
    let mut ways = headed(["WAY", "OVER", "P50 MS", "P99 MS", "UP MB/S", "DOWN MB/S", "ADDRESS"]);
    for way in elements(&probe["ways"]) {
        let trips = &way["round_trips"];
        let rate = |of: &Value| if of["bytes"] == 0 { String::new() } else { decimal(&of["megabytes_per_s"]) };
        let error = way["error"].as_str().map(|error| format!(": {}", super::plain::text(error)));
        ways.add_row([
            text(&way["path"]),
            text(&way["transport"]),
            decimal(&trips["p50_ms"]),
            decimal(&trips["p99_ms"]),
            rate(&way["up"]),
            rate(&way["down"]),
            format!("{}{}", whole(&way["address"]), error.unwrap_or_default()),
        ]);
    }
    right(&mut ways, 2..=5);
    if elements(&probe["ways"]).next().is_none() {
        lines(&table)
    } else {
        format!("{}\n{}", lines(&table), lines(&ways))
    }
}

fn right(table: &mut Table, columns: std::ops::RangeInclusive<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// With two places, or nothing where there is no number.
fn decimal(value: &Value) -> String {
    value.as_f64().map_or_else(String::new, |number| format!("{number:.2}"))
}

/// What `otela doctor` has found, with what to do on a line of its own.
pub(crate) fn doctor(answer: &Value) -> String {
    let mut table = Table::new();
    for found in elements(&answer["checks"]) {
        let verdict = found["verdict"].as_str().unwrap_or_default();
        table.add_row([cell(verdict), text(&found["check"]), whole(&found["says"])]);
        if let Some(advice) = found["advice"].as_str().filter(|_| verdict != "ok") {
            table.add_row([String::new(), String::new(), format!("  -> {}", super::plain::text(advice))]);
        }
    }
    let sum = if answer["ok"] == true {
        "A mesh can be joined and served from here."
    } else {
        "A mesh cannot be joined and served from here: see what failed."
    };
    format!("{}\n{sum}\n", lines(&table))
}

/// How others can reach the peer.
fn reach(reach: &Value) -> String {
    let ways = [
        (reach["dialled"] == true).then(|| "at its own addresses".to_owned()),
        Some(elements(&reach["relays"]).count())
            .filter(|n| *n > 0)
            .map(|n| format!("through {n} relay{}", if n == 1 { "" } else { "s" })),
    ];
    let ways: Vec<_> = ways.into_iter().flatten().collect();
    match (reach["reachable"] == true, ways.is_empty()) {
        (true, false) => format!("yes, {}", ways.join(" and ")),
        (true, true) => "perhaps: the mesh has no relay".to_owned(),
        (false, _) => "not yet".to_owned(),
    }
}

/// An address that is not announced, whose it is, and why.
fn left_out(left: &Value) -> String {
    let interface = left["interface"].as_str().map_or_else(String::new, |name| format!(" of {}", cell(name)));
    format!("{}{interface}: {}", whole(&left["address"]), text(&left["reason"]))
}

fn connections(connections: &Value) -> String {
    let all: Vec<_> = elements(connections).collect();
    let relayed = all.iter().filter(|connection| connection["path"] == "relayed").count();
    let rtts = || all.iter().filter_map(|connection| connection["rtt_ms"].as_f64());
    let mut peers = format!("{} peers, {relayed} of them relayed", all.len());
    let of = |is: &dyn Fn(&Value) -> bool| all.iter().filter(|connection| is(connection)).count();
    let ways = [
        (of(&|connection| connection["carrier"] == "quic"), "over QUIC"),
        (of(&|connection| connection["carrier"] == "wss"), "over wss"),
        (of(&|connection| connection["proxied"] == true), "through the proxy"),
    ];
    for (count, way) in ways.into_iter().filter(|(count, _)| *count > 0) {
        peers = format!("{peers}, {count} {way}");
    }
    match (rtts().reduce(f64::min), rtts().reduce(f64::max)) {
        (Some(least), Some(most)) => format!("{peers}, round trips {least:.1} to {most:.1} ms"),
        _ => peers,
    }
}

/// `3 alive, 1 suspect`.
fn counts(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten().filter(|(_, count)| **count != 0);
    counts.map(|(name, count)| format!("{} {}", number(count), cell(name))).collect::<Vec<_>>().join(", ")
}

/// Each name once, in order, and not too many of them.
fn names(mut names: Vec<String>) -> String {
    names.sort_unstable();
    names.dedup();
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    let shown = names.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    cell(value.as_str().unwrap_or_default())
}

/// As [`text`], however long: an address that is cut is none.
fn whole(value: &Value) -> String {
    super::plain::text(value.as_str().unwrap_or_default())
}

fn number(value: &Value) -> String {
    value.as_u64().unwrap_or_default().to_string()
}

/// Names and what belongs to them, one below the other.
pub(crate) fn pairs(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    for (name, value) in rows {
        table.add_row([name.to_owned(), super::plain::text(&value)]);
    }
    lines(&table)
}

/// Rows under names, made safe as whatever comes from elsewhere.
pub(crate) fn columns<const N: usize>(names: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = headed(names);
    for row in rows {
        table.add_row(row.map(|value| cell(&value)));
    }
    lines(&table)
}

fn headed<const N: usize>(names: [&str; N]) -> Table {
    let mut table = Table::new();
    table.set_header(names);
    table
}

/// The table without frame, without space at the ends of lines, and with an end after each line.
fn lines(table: &Table) -> String {
    let mut table = table.clone();
    table.load_style(comfy_table::presets::NOTHING);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests;
