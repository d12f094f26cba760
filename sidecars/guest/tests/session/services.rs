//! Tests services: their readiness, their restarts, and their ends.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bottle_channel::{Channel, Stream};
use bottle_protocol::session::guest::{Exit, GuestEvent, GuestRequest, Process};
use bottle_protocol::session::process::{ProcessName, ReadFrom, ReadOutput};
use bottle_protocol::session::service::{
    HttpCheck, Readiness, Restart, SERVICES_MAX, Service, ServiceInfo, ServiceState, StopService,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bottle::{Bottle, SOON, all, ask, process, shell, stop};

fn service(name: &str, process: Process, readiness: Readiness) -> Service {
    Service {
        name: name.parse().unwrap(),
        process,
        readiness,
        interval_ms: 20,
        timeout_ms: 2_000,
        start_period_ms: 10_000,
        restart: Restart::No,
    }
}

fn info(event: GuestEvent) -> ServiceInfo {
    match event {
        GuestEvent::Service(info) => info,
        other => panic!("{other:?}"),
    }
}

async fn start(channel: &Channel, service: Service) -> ServiceInfo {
    info(ask(channel, &GuestRequest::StartService(service)).await)
}

async fn list(channel: &Channel) -> Vec<ServiceInfo> {
    match ask(channel, &GuestRequest::ListServices).await {
        GuestEvent::Services { services } => services,
        other => panic!("{other:?}"),
    }
}

async fn end(channel: &Channel, name: &str, grace_ms: u64) -> ServiceInfo {
    let name = name.parse().unwrap();
    info(ask(channel, &GuestRequest::StopService(StopService { name, grace_ms })).await)
}

/// Waits until a service is in a state for which `reached` returns true.
async fn until(channel: &Channel, reached: impl Fn(&ServiceInfo) -> bool) -> ServiceInfo {
    let end = Instant::now() + SOON;
    loop {
        let services = list(channel).await;
        if let Some(found) = services.iter().find(|info| reached(info)) {
            return found.clone();
        }
        assert!(Instant::now() < end, "{services:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn output(channel: &Channel, name: &str) -> String {
    let process: ProcessName = name.parse().unwrap();
    let request =
        ReadOutput { process, from: ReadFrom::Position(0), max: 1 << 16, wait_ms: 0, follow: false };
    all(channel.open(&GuestRequest::ReadOutput(request)).await.unwrap()).await.text()
}

async fn watch(channel: &Channel) -> Stream {
    channel.open(&GuestRequest::WatchServices).await.unwrap()
}

async fn next_end(watch: &mut Stream) -> ServiceInfo {
    info(timeout(SOON, watch.receive()).await.expect("an end in time").unwrap())
}

/// Starts a server that answers each connection with `response`.
async fn server(response: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = client.read(&mut request).await;
            let _ = client.write_all(response.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn each_check_finds_out_when_a_service_is_ready() {
    let (bottle, channel) = Bottle::ready().await;
    let later = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let http = |address: SocketAddr| {
        Readiness::Http(HttpCheck { addresses: vec![address], host: "localhost".into(), path: "/x".into() })
    };
    let ok = server("HTTP/1.1 302 Found\r\n\r\n").await;
    std::fs::write(bottle.root().join("workspace/there"), "").unwrap();
    let argv = |words: &[&str]| Readiness::Command(words.iter().map(|&word| word.to_owned()).collect());
    for (name, readiness) in [
        ("started", Readiness::Started),
        ("tcp", Readiness::Tcp(vec![later, ok])),
        ("http", http(ok)),
        ("relative", Readiness::File("there".into())),
        ("absolute", Readiness::File("/workspace/there".into())),
        ("command", argv(&["test", "-e", "there"])),
    ] {
        let info = start(&channel, service(name, shell("sleep 60"), readiness)).await;
        assert_eq!((info.state, info.why), (ServiceState::Ready, None), "{name}");
        assert!(info.ready_at.is_some() && info.process.is_some() && info.restarts == 0, "{name}");
    }
    // The file appears while the guest waits for it.
    let appears = service("appears", shell("sleep 0.2; touch new; sleep 60"), Readiness::File("new".into()));
    assert_eq!(start(&channel, appears).await.state, ServiceState::Ready);
    let names: Vec<String> = list(&channel).await.into_iter().map(|info| info.name.into()).collect();
    assert_eq!(names, ["started", "tcp", "http", "relative", "absolute", "command", "appears"]);
}

#[tokio::test]
async fn a_service_that_does_not_become_ready_fails_with_the_reason() {
    let (_bottle, channel) = Bottle::ready().await;
    let (broken, silent) = (server("HTTP/1.1 503 No\r\n\r\n").await, server("").await);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let http = |address| HttpCheck { addresses: vec![address], host: "localhost:1".into(), path: "/".into() };
    let argv = |script: &str| Readiness::Command(vec!["sh".into(), "-c".into(), script.into()]);
    let mut checked = JoinSet::new();
    for (name, readiness, why) in [
        ("status", Readiness::Http(http(broken)), "localhost:1 answers with status 503"),
        ("silent", Readiness::Http(http(silent)), "localhost:1 does not answer with HTTP"),
        ("tcp", Readiness::Tcp(vec![closed]), "does not accept a connection: Connection refused"),
        ("outside", Readiness::File("../../there".into()), "../../there: No such file"),
        ("code", argv("exit 3"), "exits with code 3"),
        ("killed", argv("kill -9 $$"), "is killed by signal 9"),
        ("missing", Readiness::Command(vec!["no-such-program".into()]), "is not in the bottle"),
        ("slow", argv("sleep 77"), "a check takes longer than 50ms"),
    ] {
        let service = Service {
            timeout_ms: if name == "slow" { 50 } else { 2_000 },
            start_period_ms: 2_000,
            interval_ms: 500,
            restart: Restart::Always,
            ..service(name, shell("sleep 60"), readiness)
        };
        let channel = channel.clone();
        checked.spawn(async move { (name, why, start(&channel, service).await) });
    }
    while let Some(done) = checked.join_next().await {
        let (name, why, info) = done.unwrap();
        assert_eq!(
            info.state,
            ServiceState::Failed,
            "{name}: a service that was never ready is not restarted"
        );
        let said = info.why.unwrap();
        assert!(said.starts_with("it was not ready after 2s: ") && said.contains(why), "{name}: {said}");
        assert_eq!(info.exit, Some(Exit::Signal(15)), "{name}");
    }
    let ends = service("ends", shell("echo no database; exit 4"), Readiness::File("never".into()));
    let info = start(&channel, ends).await;
    assert_eq!(info.why.as_deref(), Some("it exited with code 4 before it was ready"));
    assert_eq!(output(&channel, "ends").await, "no database\n");
    let missing = start(&channel, service("gone", process(&["no-such-program"]), Readiness::Started)).await;
    assert_eq!((missing.state, missing.process), (ServiceState::Failed, None));
    assert!(missing.why.unwrap().contains("no-such-program"));
    // The guest kills a check that exceeds its time limit.
    let commands = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok());
    assert!(!commands.into_iter().any(|command| command == b"sleep\x0077\0"), "a check goes on");
}

#[tokio::test]
async fn a_service_that_ends_is_restarted_by_its_policy() {
    let (bottle, channel) = Bottle::ready().await;
    let mut ends = watch(&channel).await;
    for (restart, script, state) in [
        (Restart::No, "exit 1", ServiceState::Exited),
        (Restart::OnFailure, "exit 0", ServiceState::Exited),
        (Restart::OnFailure, "exit 1", ServiceState::Restarting),
        (Restart::Always, "exit 0", ServiceState::Restarting),
    ] {
        // The service ends only after it has been ready, so that its restart policy applies.
        let script = format!("touch ready; while [ -e ready ]; do sleep 0.02; done; {script}");
        let one = Service { restart, ..service("one", shell(&script), Readiness::File("ready".into())) };
        let _ = std::fs::remove_file(bottle.root().join("workspace/ready"));
        assert_eq!(start(&channel, one).await.state, ServiceState::Ready);
        std::fs::remove_file(bottle.root().join("workspace/ready")).unwrap();
        let end_of_run = next_end(&mut ends).await;
        assert_eq!(end_of_run.state, state, "{restart:?}: {end_of_run:?}");
        assert!(end_of_run.why.is_some_and(|why| why.starts_with("it exited with code")));
        if state == ServiceState::Restarting {
            let again = until(&channel, |info| info.state == ServiceState::Ready && info.restarts == 1).await;
            assert_ne!(again.process, end_of_run.process, "another run is another process");
        }
        let stopped = end(&channel, "one", 1000).await;
        let state = if state == ServiceState::Exited { state } else { ServiceState::Stopped };
        assert_eq!(stopped.state, state);
    }
}

#[tokio::test]
async fn a_stop_reaches_all_processes_of_a_service_and_ends_its_restarts() {
    let (bottle, channel) = Bottle::ready().await;
    let stubborn = "trap '' TERM; (trap '' TERM; while :; do date +%N > beat; sleep 0.01; done) & wait";
    let one = Service {
        restart: Restart::Always,
        ..service("one", shell(stubborn), Readiness::File("beat".into()))
    };
    start(&channel, one.clone()).await;
    let refused = ask(&channel, &GuestRequest::StartService(one.clone())).await;
    assert!(format!("{refused:?}").contains("the service one runs already"), "{refused:?}");
    let stopped = end(&channel, "one", 50).await;
    assert_eq!((stopped.state, stopped.exit), (ServiceState::Stopped, Some(Exit::Signal(9))));
    let beat = || std::fs::read(bottle.root().join("workspace/beat")).unwrap();
    let last = beat();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(beat(), last, "a process of the service runs on");
    // A service that waits for its restart can be stopped immediately.
    let ending =
        Service { restart: Restart::Always, ..service("two", shell("sleep 0.05"), Readiness::Started) };
    start(&channel, ending).await;
    until(&channel, |info| info.state == ServiceState::Restarting).await;
    assert_eq!(end(&channel, "two", 50).await.state, ServiceState::Stopped);
    // A stopped service can be started again.
    assert_eq!(start(&channel, one).await.state, ServiceState::Ready);
    end(&channel, "one", 50).await;
    let again = GuestRequest::StartServiceAgain { service: "one".parse().unwrap() };
    assert_eq!(info(ask(&channel, &again).await).state, ServiceState::Ready);
    let refused = format!("{:?}", ask(&channel, &again).await);
    assert!(refused.contains("the service one runs already"), "{refused}");
    let three = StopService { name: "three".parse().unwrap(), grace_ms: 1 };
    let missing = format!("{:?}", ask(&channel, &GuestRequest::StopService(three)).await);
    assert!(missing.contains("the bottle has no service three: it has two, one"), "{missing}");
}

#[tokio::test]
async fn the_bottle_stops_its_services_from_the_last_to_the_first() {
    let (mut bottle, channel) = Bottle::ready().await;
    let log = "trap 'echo NAME >> ../stops; exit' TERM; touch NAME; while :; do sleep 0.01; done";
    for name in ["first", "second", "third"] {
        let service = service(name, shell(&log.replace("NAME", name)), Readiness::File(name.into()));
        let service = Service { restart: Restart::Always, ..service };
        assert_eq!(start(&channel, service).await.state, ServiceState::Ready);
    }
    assert_eq!(ask(&channel, &stop(1000)).await, GuestEvent::Done);
    bottle.exited().await;
    let stops = std::fs::read_to_string(bottle.root().join("stops")).unwrap();
    assert_eq!(stops, "third\nsecond\nfirst\n");
}

#[tokio::test]
async fn many_restarts_keep_few_outputs_and_the_number_of_services_is_bounded() {
    let (_bottle, channel) = Bottle::ready().await;
    let busy = Service {
        restart: Restart::Always,
        ..service("busy", shell("echo run; sleep 0.02"), Readiness::Started)
    };
    start(&channel, busy).await;
    until(&channel, |info| info.restarts >= 3).await;
    let processes = match ask(&channel, &GuestRequest::ListProcesses).await {
        GuestEvent::Processes { processes } => processes,
        other => panic!("{other:?}"),
    };
    assert!(processes.len() <= 2, "{processes:?}");
    // A run that has just begun may have no output yet.
    let mut shown = output(&channel, "busy").await;
    let late = Instant::now() + SOON;
    while shown.is_empty() && Instant::now() < late {
        shown = output(&channel, "busy").await;
    }
    assert_eq!(shown, "run\n");
    for number in 1..SERVICES_MAX {
        let name = format!("s{number}");
        assert_eq!(
            start(&channel, service(&name, shell("sleep 60"), Readiness::Started)).await.state,
            ServiceState::Ready
        );
    }
    let more = service("more", shell("sleep 60"), Readiness::Started);
    let more = format!("{:?}", ask(&channel, &GuestRequest::StartService(more)).await);
    assert!(more.contains("32 services run already"), "{more}");
    // After one service has ended, another service can be started.
    end(&channel, "s1", 100).await;
    let fits = start(&channel, service("more", shell("sleep 60"), Readiness::Started)).await;
    assert_eq!(fits.state, ServiceState::Ready);
}
