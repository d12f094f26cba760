//! The bundle: started, found, connected to, and what becomes of the proxy without it.

use bottle_channel::{Channel, Side};
use bottle_contract::names::EGRESS_PORT;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Provision};
use bottle_contract::session::{Hello, Role};

use crate::stand::{Bottle, every_backend, every_isolating_backend, run};

/// Tries the proxy from inside: the number of the error, or 0.
const KNOCK: &str = "import socket; s = socket.socket(); s.settimeout(5); \
    e = s.connect_ex(('egress', 9099)); \
    e or s.sendall(b'GET http://198.51.100.1/ HTTP/1.1\\r\\nHost: 198.51.100.1\\r\\n\\r\\n'); \
    print(e, s.recv(12) if not e else b'')";

/// How often an open proxy is tried: a machine under load stands still for seconds.
const TRIES: usize = 6;

/// What an open proxy says, at last.
async fn answer_of_the_proxy(guest: &Channel) -> String {
    let mut answer = String::new();
    for _ in 0..TRIES {
        (answer, _) = run(guest, &["/usr/bin/python3", "-c", KNOCK]).await.expect("ran");
        if answer.contains("HTTP/1.1") {
            break;
        }
    }
    answer
}

pub(crate) async fn bundle(bottle: &Bottle<'_>) -> Channel {
    let stream = bottle.stand.backend.connect_bundle(bottle.slug()).await.expect("connect");
    let hello = Hello::of(Role::Keeper);
    let (channel, _, peer) = Channel::establish(stream, Side::Dialed, hello).await.expect("greeted");
    assert_eq!(peer.role, Role::Bundle);
    channel
}

pub(crate) async fn provision(bottle: &Bottle<'_>, channel: &Channel) {
    let provision = Provision::of_routes(bottle.slug().clone(), bottle.plan.egress.routes.clone());
    let request = BundleRequest::Provision(Box::new(provision));
    let mut stream = channel.open(&request).await.expect("open");
    match stream.receive::<BundleEvent>().await.expect("answer") {
        BundleEvent::Ready { ca_certificate } => assert!(ca_certificate.contains("BEGIN CERTIFICATE")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_recorded_found_connected_to_again_and_removed() {
    for stand in every_backend().await {
        let bottle = stand.planned("guarded");
        stand.backend.make_network(&bottle.site()).await.expect("network");
        bottle.start_bundle().await;
        bundle(&bottle).await.close();
        bundle(&bottle).await.close();
        let recorded = bottle.ledger.all();
        assert!(recorded.iter().any(|resource| resource.kind == "bundle-process"), "{}", stand.name());
        let found = bottle.found().await;
        // A container is one thing, whatever runs in it.
        let daemons = (stand.name() != "docker").then_some("egress-process");
        for kind in ["bundle-process"].into_iter().chain(daemons) {
            assert!(found.iter().any(|resource| resource.kind == kind), "{} {kind}: {found:?}", stand.name());
        }
        // By what the ledger knows alone, which has no word of the daemons.
        stand.backend.remove(&recorded).await.expect("removed");
        assert_eq!(bottle.found().await, [], "{}", stand.name());
        assert!(stand.backend.connect_bundle(bottle.slug()).await.is_err(), "{}", stand.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guards_are_nobody_privileged_and_not_the_agents_user() {
    for stand in every_isolating_backend().await {
        let bottle = stand.bottle("guards").await;
        bottle.start_bundle().await;
        let channel = bundle(&bottle).await;
        provision(&bottle, &channel).await;
        let guest = bottle.provisioned().await;
        let answer = answer_of_the_proxy(&guest).await;
        assert!(answer.contains("HTTP/1.1"), "{}: {answer}", stand.name());

        if stand.name() == "docker" {
            // Its own test looks at the containers.
            bottle.remove().await;
            continue;
        }
        let own = rustix::process::getuid().as_raw();
        let mut users = Vec::new();
        for resource in bottle.found().await {
            let Some((pid, _)) = resource.id.split_once(':') else { continue };
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
            let uid = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).expect("uid");
            users.push((resource.kind, uid.split('\t').map(|uid| uid.parse().expect("a number")).collect()));
        }
        assert_eq!(users.len(), 4, "{}: {users:?}", stand.name());
        for (kind, uids) in users {
            let uids: Vec<u32> = uids;
            let range = match kind.as_str() {
                _ if own != 0 => own..own + 1,
                "guest-process" => 0x7000_0000..0x7100_0000,
                _ => 0x7100_0000..0x7200_0000,
            };
            assert!(uids.iter().all(|uid| range.contains(uid)), "{} {kind}: {uids:?}", stand.name());
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_is_closed_before_its_bundle_is_ready_and_after_it_died() {
    for stand in every_isolating_backend().await {
        let bottle = stand.bottle("proxy").await;
        let guest = bottle.provisioned().await;
        let knock = ["/usr/bin/python3", "-c", KNOCK];
        let is_closed = |output: &str| !output.contains("HTTP/1.1");

        let (output, _) = run(&guest, &knock).await.expect("ran");
        assert!(is_closed(&output), "{} without a bundle: {output}", stand.name());
        bottle.start_bundle().await;
        let channel = bundle(&bottle).await;
        let (output, _) = run(&guest, &knock).await.expect("ran");
        assert!(is_closed(&output), "{} before it was provisioned: {output}", stand.name());
        provision(&bottle, &channel).await;
        let socket = stand.host.runtime.join("proxy/proxy").join(EGRESS_PORT.to_string());
        assert!(socket.exists() || stand.name() == "docker");
        let answer = answer_of_the_proxy(&guest).await;
        assert!(answer.contains("HTTP/1.1"), "{} with a bundle: {answer}", stand.name());

        let mut processes = bottle.ledger.all();
        processes.retain(|resource| resource.kind == "bundle-process");
        stand.backend.remove(&processes).await.expect("killed");
        let (output, _) = run(&guest, &knock).await.expect("ran");
        assert!(is_closed(&output), "{} after it died: {output}", stand.name());
        bottle.remove().await;
    }
}
