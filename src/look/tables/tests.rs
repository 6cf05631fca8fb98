use super::*;
use serde_json::json;

#[test]
fn nodes_in_aligned_columns() {
    let answer = json!([
        {
            "id": "12D3KooWa", "lifecycle": "serving", "draining": true, "roles": ["node"],
            "hardware": {"hostname": "n1", "accelerators": [{"count": 2, "kind": "H100"}]},
            "services": [{"models": [{"id": "d"}, {"id": "b"}, {"id": "a"}, {"id": "c"}, {"id": "a"}]}],
            "belief": {"state": "suspect", "accusations": [{}, {}]},
            "provider": {"verified": true, "id": "12D3KooWp", "until_ms": 1, "name": "mine"},
        },
        {
            "id": "12D3KooWbb", "lifecycle": "join", "draining": false, "roles": ["ingress"], "hardware": null,
            "services": [{"loading": "weights", "models": []}], "belief": {"state": "alive", "accusations": []},
            "provider": {"verified": false, "reason": "no_certificate", "claimed_id": null, "name": "eth"},
        },
        {
            "id": "12D3KooWc", "lifecycle": "join", "roles": [], "services": [],
            "belief": {"state": "alive", "accusations": []},
            "provider": {"verified": false, "reason": "expired", "claimed_id": "12D3KooWp", "name": null},
        },
    ]);
    let expected = "\
NODE        SAYS               BELIEVED               ROLES    GPUS     MODELS              HOST  PROVIDER
12D3KooWa   serving, draining  suspect, accused by 2  node     2x H100  a, b, c and 1 more  n1    12D3KooWp
12D3KooWbb  join, weights      alive                  ingress                                     unverified: eth
12D3KooWc   join               alive                                                              unverified
";
    assert_eq!(nodes(&answer), expected);
}

#[test]
fn models_with_numbers_to_the_right() {
    let answer = json!([
        {"id": "m", "ready": 12, "unready": 0, "replicas": [
            {"engine": "vllm", "engine_version": "1", "context_length": 8192},
            {"engine": "vllm", "engine_version": "1", "context_length": 4096},
            {"engine": "sglang", "engine_version": "", "context_length": null},
        ]},
        {"id": "long/name", "ready": 0, "unready": 1, "replicas": []},
    ]);
    let expected = "\
MODEL      READY  UNREADY  CONTEXT  ENGINES
m             12        0     4096  sglang, vllm 1
long/name      0        1
";
    assert_eq!(models(&answer), expected);
}

#[test]
fn an_empty_list_is_a_head() {
    assert_eq!(models(&json!([])), "MODEL  READY  UNREADY  CONTEXT  ENGINES\n");
}

#[test]
fn status_tells_what_is_wrong() {
    let text = status(&json!({
        "id": "12D3KooWa", "mesh": "lab", "roles": ["ingress"], "lifecycle": "join", "joined": false,
        "nodes": {"listed": 3, "departed": 1, "by_lifecycle": {"join": 1, "serving": 2, "down": 0}, "by_belief": {"alive": 3}},
        "models": {"ready": 2, "unready": 1},
        "reach": {"reachable": true, "dialled": true, "relays": ["a", "b"], "relays_known": 3,
            "left_out": [{"address": "/ip4/172.17.0.1/tcp/1", "interface": "docker0", "reason": "a bridge"}, {"address": "/ip4/127.0.0.1/tcp/1", "interface": null, "reason": "loopback"}]},
        "addresses": ["/ip4/10.0.0.7/tcp/1/p2p/12D3KooWa"],
        "connections": [{"path": "direct", "address": "/ip4/10.0.0.8/tcp/7411", "rtt_ms": 0.25}, {"path": "relayed", "rtt_ms": null}, {"path": "direct", "carrier": "wss", "proxied": true, "rtt_ms": 12.0}],
        "refused": [{"what": "entries", "reason": "malformed", "count": 3}],
        "warnings": [{"code": "not_joined", "message": format!("Look\u{1b}[2J {}", "there ".repeat(30))}],
    }));
    for line in [
        "joined       not yet",
        "nodes        3 listed, 1 departed",
        "they say     1 join, 2 serving",
        "reachable    yes, at its own addresses and through 2 relays",
        "announced    /ip4/10.0.0.7/tcp/1/p2p/12D3KooWa",
        "left out     /ip4/172.17.0.1/tcp/1 of docker0: a bridge",
        "left out     /ip4/127.0.0.1/tcp/1: loopback",
        "connected    direct /ip4/10.0.0.8/tcp/7411",
        "connections  3 peers, 1 of them relayed, 1 over wss, 1 through the proxy, round trips 0.2 to 12.0 ms",
        "refused      3 entries: malformed",
    ] {
        assert!(text.lines().any(|told| told == line), "{line}\n{text}");
    }
    let warning = text.lines().find(|line| line.starts_with("warning")).unwrap();
    assert!(warning.contains(r"Look\u{1b}[2J there") && warning.ends_with("there"), "{warning}");
}

#[test]
fn names_from_the_network_cannot_break_the_table() {
    let nasty = "x\u{1b}]0;title\u{7}\ny";
    let text = models(&json!([{"id": nasty, "ready": 0, "unready": 0, "replicas": []}]));
    assert_eq!(text.lines().count(), 2);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}
