use super::{
    super::tests::{Scene, entry, id},
    *,
};
use futures::FutureExt;
use http_body_util::BodyExt;
use otela_proto::{lifecycle::Lifecycle, payload::Payload};
use std::ops::Range;

/// One event as a client reads it.
#[derive(Debug)]
struct Told {
    name: String,
    id: Option<String>,
    data: Value,
}

async fn told(watcher: &mut Watcher) -> Told {
    let event = otela_testing::finishes("the next event", watcher.next()).await;
    let events = stream::iter([Ok::<_, Infallible>(event.expect("it goes on"))]);
    let body = Sse::new(events).into_response().into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&body).unwrap();
    let field = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let data = serde_json::from_str(&field("data:").unwrap()).unwrap();
    Told { name: field("event:").unwrap(), id: field("id:"), data }
}

fn watcher(scene: &Scene, seen: Option<&str>) -> Watcher {
    let place = Place::take(&scene.observed).unwrap();
    Watcher::new(scene.observed.clone(), seen.map(|id| id.parse().unwrap()), place)
}

async fn learn(scene: &Scene, peers: Range<u32>, lifecycle: Lifecycle, version: u64) {
    scene.learn(peers.map(|number| entry(number, lifecycle, version, Payload::default())).collect()).await;
}

#[tokio::test]
async fn a_snapshot_comes_in_parts_and_counts_when_it_is_complete() {
    let scene = Scene::new().await;
    learn(&scene, 0..600, Lifecycle::Join, 1).await;
    let mut watcher = watcher(&scene, None);
    let mut seen = BTreeSet::new();
    for part in 1..=3 {
        let told = told(&mut watcher).await;
        let nodes = told.data["nodes"].as_array().unwrap();
        assert_eq!((told.name.as_str(), &told.data["part"]), ("snapshot", &json!(part)));
        assert_eq!((told.id.is_some(), &told.data["more"]), (part == 3, &json!(part < 3)));
        assert!(nodes.len() <= PART_NODES);
        seen.extend(nodes.iter().map(|node| node["id"].as_str().unwrap().to_owned()));
        if part == 1 {
            // Behind the first part or not: it is told.
            learn(&scene, 0..1, Lifecycle::Join, 7).await;
        }
    }
    assert_eq!(seen.len(), 601, "and this peer itself");
    let change = told(&mut watcher).await;
    assert_eq!((change.name.as_str(), &change.data["version"]), ("node", &json!(7)));
    assert!(change.id.is_some());
    assert!(watcher.next().now_or_never().is_none(), "nothing else");
}

#[tokio::test]
async fn a_slow_reader_gets_the_newest_state_and_no_backlog() {
    let scene = Scene::new().await;
    learn(&scene, 0..2, Lifecycle::Join, 1).await;
    let mut watcher = watcher(&scene, None);
    assert_eq!(told(&mut watcher).await.name, "snapshot");
    for version in 2..50 {
        learn(&scene, 0..2, Lifecycle::Join, version).await;
    }
    let (one, other) = (told(&mut watcher).await, told(&mut watcher).await);
    assert!(one.id.is_none() && other.id.is_some(), "only the last one is a point to come back to");
    for told in [&one, &other] {
        assert_eq!((told.name.as_str(), &told.data["version"]), ("node", &json!(49)));
    }
    assert_ne!(one.data["id"], other.data["id"]);
    assert!(watcher.next().now_or_never().is_none());
}

#[tokio::test]
async fn who_is_let_go_of_is_gone_for_watchers_too() {
    let scene = Scene::new().await;
    learn(&scene, 0..100, Lifecycle::Left, 1).await;
    let mut first = watcher(&scene, None);
    let snapshot = told(&mut first).await;
    assert_eq!(snapshot.data["nodes"].as_array().unwrap().len(), 1, "who has left is not listed");
    let point = snapshot.id.unwrap();
    // More than are kept: the oldest are buried.
    learn(&scene, 100..1_200, Lifecycle::Left, 1).await;
    for mut watcher in [first, watcher(&scene, Some(&point))] {
        let mut gone = Vec::new();
        loop {
            let told = told(&mut watcher).await;
            if told.name == "gone" {
                gone.push(told.data["id"].as_str().unwrap().parse::<PeerId>().unwrap());
            }
            if told.id.is_some() {
                break;
            }
        }
        let view = scene.observed.peer.view();
        let expected: BTreeSet<_> = (0..100).map(id).filter(|id| view.node(id).is_none()).collect();
        assert!(!expected.is_empty());
        assert_eq!(gone.into_iter().collect::<BTreeSet<_>>(), expected);
    }
}

#[tokio::test]
async fn watchers_are_sent_home_at_the_end() {
    let scene = Scene::new().await;
    let mut watcher = watcher(&scene, None);
    assert_eq!(told(&mut watcher).await.name, "snapshot");
    let (end, ()) = tokio::join!(watcher.next(), async { scene.observed.ending.cancel() });
    assert!(end.is_none());
    assert_eq!(scene.observed.counters.watchers.get(), 1);
    drop(watcher);
    assert_eq!(scene.observed.counters.watchers.get(), 0);
}
