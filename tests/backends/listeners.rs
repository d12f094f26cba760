//! Tests the start, enumeration and channel of the bundle, and connections to the proxy with and without a bundle.

use bottle_channel::{Channel, Side};
use bottle_policy::names::EGRESS_PORT;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Provision};
use bottle_protocol::session::{Hello, Role};

use bottle_test_support::engine;

use crate::fixture::{Bottle, close, every_backend, every_isolating_backend, run};

/// A script that connects to the proxy from the bottle. It prints the error number, or 0.
const TRY_CONNECT: &str = "import socket; s = socket.socket(); s.settimeout(5); \
    e = s.connect_ex(('egress', 9099)); \
    e or s.sendall(b'GET http://198.51.100.1/ HTTP/1.1\\r\\nHost: 198.51.100.1\\r\\n\\r\\n'); \
    print(e, s.recv(12) if not e else b'')";

/// The number of attempts to connect to an open proxy. A machine under load can stall for seconds.
const TRIES: usize = 6;

/// Sends a request to an open proxy, with retries, and returns its answer.
async fn proxy_answer(guest: &Channel) -> String {
    let mut answer = String::new();
    for _ in 0..TRIES {
        (answer, _) = run(guest, &["/usr/bin/python3", "-c", TRY_CONNECT]).await.expect("ran");
        if answer.contains("HTTP/1.1") {
            break;
        }
    }
    answer
}

pub(crate) async fn bundle(bottle: &Bottle<'_>) -> Channel {
    let stream = bottle.fixture.backend.connect_bundle(bottle.slug()).await.expect("connect");
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
    for fixture in every_backend().await {
        let bottle = fixture.planned("guarded");
        fixture.backend.make_network(&bottle.launch()).await.expect("network");
        bottle.start_bundle().await;
        close(bundle(&bottle).await).await;
        close(bundle(&bottle).await).await;
        let recorded = bottle.resources.all();
        assert!(recorded.iter().any(|resource| resource.kind == "bundle-process"), "{}", fixture.name());
        let found = bottle.found().await;
        // A container is one resource, although several processes run in it.
        let daemons = (!fixture.is_contained()).then_some("egress-process");
        for kind in ["bundle-process"].into_iter().chain(daemons) {
            assert!(
                found.iter().any(|resource| resource.kind == kind),
                "{} {kind}: {found:?}",
                fixture.name()
            );
        }
        // The resource log does not contain the sidecars. The removal of the resources in the log must also remove the
        // sidecars.
        fixture.backend.remove(&recorded).await.expect("removed");
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
        assert!(fixture.backend.connect_bundle(bottle.slug()).await.is_err(), "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sidecars_are_unprivileged_and_not_the_agents_user() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("guards").await;
        bottle.start_bundle().await;
        let channel = bundle(&bottle).await;
        provision(&bottle, &channel).await;
        let guest = bottle.provisioned().await;
        let answer = proxy_answer(&guest).await;
        assert!(answer.contains("HTTP/1.1"), "{}: {answer}", fixture.name());

        if fixture.name() == "apple" {
            let bundle = format!("bottle-{}-bundle-{}", fixture.host.home_hash(), bottle.slug());
            let users = engine::docker(&["top", &bundle, "-eo", "pid,uid"]).expect("processes");
            let users: Vec<&str> =
                users.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
            assert!(users.len() >= 2 && users.iter().all(|user| *user == "64242"), "{users:?}");
        }
        if fixture.is_contained() {
            // Another test checks the users of containers of docker.
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
        // The guest of a virtual machine is not a process of the host.
        let expected = if fixture.is_machine() { 3 } else { 4 };
        assert_eq!(users.len(), expected, "{}: {users:?}", fixture.name());
        for (kind, uids) in users {
            let uids: Vec<u32> = uids;
            let range = match kind.as_str() {
                _ if own != 0 => own..own + 1,
                "guest-process" => 0x7000_0000..0x7100_0000,
                _ => 0x7100_0000..0x7200_0000,
            };
            assert!(uids.iter().all(|uid| range.contains(uid)), "{} {kind}: {uids:?}", fixture.name());
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_accepts_connections_only_while_its_bundle_is_ready() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("proxy").await;
        let guest = bottle.provisioned().await;
        let knock = ["/usr/bin/python3", "-c", TRY_CONNECT];
        let is_closed = |output: &str| !output.contains("HTTP/1.1");

        let (output, _) = run(&guest, &knock).await.expect("ran");
        assert!(is_closed(&output), "{} without a bundle: {output}", fixture.name());
        bottle.start_bundle().await;
        let channel = bundle(&bottle).await;
        let (output, _) = run(&guest, &knock).await.expect("ran");
        assert!(is_closed(&output), "{} before it was provisioned: {output}", fixture.name());
        provision(&bottle, &channel).await;
        let runtime = fixture.host.runtime.join(if fixture.is_machine() { ".vm" } else { "" });
        let socket = runtime.join("proxy/proxy").join(EGRESS_PORT.to_string());
        assert!(socket.exists() || fixture.is_contained());
        let answer = proxy_answer(&guest).await;
        assert!(answer.contains("HTTP/1.1"), "{} with a bundle: {answer}", fixture.name());

        let mut processes = bottle.resources.all();
        processes.retain(|resource| resource.kind == "bundle-process");
        fixture.backend.remove(&processes).await.expect("killed");
        let (output, _) = run(&guest, &knock).await.expect("ran");
        assert!(is_closed(&output), "{} after it died: {output}", fixture.name());
        bottle.remove().await;
    }
}
