//! Tests stopping a bottle, with a guest that is pid 1 of a namespace.

use std::time::{Duration, Instant};

use bottle_protocol::session::guest::{Exit, GuestEvent, GuestRequest, Probe, Reach};

use crate::bottle::{Bottle, Seen, all, ask, attach, provision, run, shell, stop};

#[tokio::test]
async fn sends_the_last_output_of_an_agent_that_exits_on_sigterm() {
    let (mut bottle, channel) = Bottle::ready().await;
    let script = "trap 'echo last words; exit 5' TERM; echo up; while :; do sleep 0.05; done";
    let agent = channel.open(&GuestRequest::StartAgent(shell(script))).await.unwrap();
    let mut stream = attach(&channel, false).await;
    let mut seen = Seen::default();
    seen.until(&mut stream, "up").await;
    assert_eq!(ask(&channel, &stop(10_000)).await, GuestEvent::Done);
    let seen = seen.rest(&mut stream).await;
    assert!(seen.text().ends_with("last words\n"), "{seen:?}");
    assert_eq!(seen.exit(), Some(Exit::Code(5)));
    assert_eq!(all(agent).await.exit(), Some(Exit::Code(5)));
    assert!(bottle.exited().await.success());
}

#[tokio::test]
async fn kills_an_agent_that_ignores_sigterm_and_all_other_processes() {
    let (mut bottle, channel) = Bottle::ready().await;
    // A grandchild leaves the process group and the session of the agent, and loses its parent.
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM HUP; sleep 4242 & echo $! > orphan; wait' & \
                  echo up; while :; do sleep 0.05; done";
    let _agent = channel.open(&GuestRequest::StartAgent(shell(script))).await.unwrap();
    let mut stream = attach(&channel, false).await;
    Seen::default().until(&mut stream, "up").await;
    let file = bottle.root().join("workspace/orphan");
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let orphan = std::fs::read_to_string(&file).unwrap();
    let begun = Instant::now();
    assert_eq!(ask(&channel, &stop(300)).await, GuestEvent::Done);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(bottle.exited().await.success());
    assert!(!std::path::Path::new("/proc").join(orphan.trim()).exists(), "{orphan} outlived its bottle");
}

#[tokio::test]
async fn stops_the_bottle_on_sigterm() {
    let (mut bottle, channel) = Bottle::ready().await;
    let _agent = channel.open(&GuestRequest::StartAgent(shell("echo up; sleep 1000"))).await.unwrap();
    let mut stream = attach(&channel, false).await;
    let mut seen = Seen::default();
    seen.until(&mut stream, "up").await;
    let pid = rustix::process::Pid::from_child(&bottle.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(seen.rest(&mut stream).await.exit(), Some(Exit::Signal(15)));
    assert!(bottle.exited().await.success());
}

#[tokio::test]
async fn pid_1_reaps_hides_its_memory_and_ends_all_processes() {
    let Some(mut bottle) = Bottle::start_as_init() else { return };
    let channel = bottle.connect().await;
    provision(&channel).await;
    let seen =
        run(&channel, shell("cat /proc/1/environ /proc/1/maps; readlink /proc/1/exe /proc/1/fd/0"), None)
            .await;
    assert_eq!(seen.text(), "");
    assert_eq!(String::from_utf8_lossy(&seen.err).matches("Permission denied").count(), 2, "{seen:?}");

    // Pid 1 reaps orphans.
    run(&channel, shell("for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &) ; done"), None).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let seen = run(&channel, shell("cat /proc/[0-9]*/stat | grep -c ') Z ' || true"), None).await;
    assert_eq!(seen.text().trim(), "0");
    // Reaping orphans does not consume the exit status of a child.
    for code in 0..20 {
        let seen = run(&channel, shell(&format!("(exit 1 &) ; exit {code}")), None).await;
        assert_eq!(seen.exit(), Some(Exit::Code(code)));
    }

    // The namespace has no network.
    let probed = ask(&channel, &GuestRequest::Probe(Probe::default())).await;
    let GuestEvent::Probed { attempts } = probed else { panic!("{probed:?}") };
    let closed = |via: &str| {
        let found = attempts.iter().filter(|attempt| attempt.via.starts_with(via));
        found.map(|attempt| (attempt.result, &attempt.seen)).collect::<Vec<_>>()
    };
    for via in ["tcp 198.51.100.1:", "tcp 169.254.169.254:", "udp 203.0.113.1:", "env", "/proc/1/environ"] {
        let found = closed(via);
        assert!(matches!(found[..], [(Reach::Blocked, _), ..]), "{via}: {found:?}");
    }

    let _agent = channel.open(&GuestRequest::StartAgent(shell("trap '' TERM; sleep 1000"))).await.unwrap();
    assert_eq!(ask(&channel, &stop(50)).await, GuestEvent::Done);
    assert!(bottle.exited().await.success());
}
