//! Tests a guest that uses its standard streams as the transport, as in a container.

use std::time::Duration;

use bottle_protocol::session::frame::{Header, Kind};
use bottle_protocol::session::guest::{Exit, GuestEvent, GuestRequest, Process, STDIN};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::bottle::{Bottle, SIZE, SOON, Seen, all, ask, attach, provision, run, shell, stop};

#[tokio::test]
async fn serves_consecutive_keepers_even_after_half_a_frame() {
    let mut bottle = Bottle::start_on_stdio();
    // The first keeper runs in a separate runtime, so that the test can end it without closing its connection.
    let keeper = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = keeper.spawn(bottle.attach().connect()).await.unwrap();
    provision(&first).await;
    let request = Process { terminal: Some(SIZE), ..shell("echo up; read x; echo got $x") };
    let mut agent = first.open(&GuestRequest::StartAgent(request)).await.unwrap();
    assert!(matches!(agent.receive().await.unwrap(), GuestEvent::Started { .. }));
    let mut stream = attach(&first, false).await;
    Seen::default().until(&mut stream, "up").await;
    let mut idle = first.open(&GuestRequest::Exec(shell("sleep 1000"))).await.unwrap();
    let GuestEvent::Started { pid } = idle.receive().await.unwrap() else { panic!() };

    // The keeper's thread must exit before another keeper uses the same pipes.
    std::thread::spawn(move || keeper.shutdown_timeout(SOON)).join().unwrap();
    let half = [&Header::new(Kind::Message, 1, 4096).unwrap().encode()[..], b"half a mess"].concat();
    bottle.attach().input().write_all(&half).await.unwrap();
    let second = bottle.connect().await;
    let mut stream = attach(&second, false).await;
    let mut seen = Seen::default();
    seen.until(&mut stream, "up").await;
    stream.data(STDIN, b"again\r").await.unwrap();
    let seen = seen.rest(&mut stream).await;
    assert!(seen.text().contains("got again"), "{seen:?}");
    assert_eq!(seen.exit(), Some(Exit::Code(0)));
    // The process that a client of the first keeper started gets SIGHUP, as if the connection had been closed.
    let gone = format!("/proc/{pid}");
    timeout(SOON, async {
        while std::path::Path::new(&gone).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the exec of a lost keeper ends");
    assert_eq!(ask(&second, &stop(0)).await, GuestEvent::Done);
    assert!(bottle.exited().await.success());
}

#[tokio::test]
async fn carries_large_output_and_input_over_standard_streams() {
    let bottle = Bottle::start_on_stdio();
    let channel = bottle.connect().await;
    provision(&channel).await;
    let input = vec![0; 3 << 20];
    let seen = run(&channel, shell("wc -c >&2; head -c 3145728 /dev/zero"), Some(&input)).await;
    assert_eq!(String::from_utf8_lossy(&seen.err).trim(), "3145728");
    assert!(seen.out == input && seen.exit() == Some(Exit::Code(0)));
}

#[tokio::test]
async fn the_end_of_its_input_or_sigterm_ends_the_bottle() {
    for end_of_input in [true, false] {
        let mut bottle = Bottle::start_on_stdio();
        let channel = bottle.connect().await;
        provision(&channel).await;
        let script = "trap 'touch asked; exit 0' TERM; echo up; while :; do sleep 0.05; done";
        let _agent = channel.open(&GuestRequest::StartAgent(shell(script))).await.unwrap();
        let mut stream = attach(&channel, false).await;
        let mut seen = Seen::default();
        seen.until(&mut stream, "up").await;
        if end_of_input {
            // Closing both streams has the same effect as an exit of the container engine and the keeper.
            bottle.streams = None;
            drop((stream, channel, _agent));
        } else {
            kill_process(Pid::from_child(&bottle.process), Signal::TERM).unwrap();
            assert_eq!(seen.rest(&mut stream).await.exit(), Some(Exit::Code(0)));
        }
        assert!(bottle.exited().await.success(), "end of input: {end_of_input}");
        assert!(bottle.root().join("workspace/asked").exists(), "the agent was asked to end");
    }
}

#[tokio::test]
async fn no_process_of_the_bottle_can_access_the_streams() {
    let Some(mut bottle) = Bottle::start_as_init_on_stdio() else { return };
    let channel = bottle.connect().await;
    provision(&channel).await;
    // The process has no descriptors except its own pipes.
    let seen = run(&channel, shell("exec ls -l /proc/self/fd"), None).await;
    let lines = seen.text().lines().filter(|line| line.contains("->")).count();
    assert_eq!(lines, 4, "three streams and the listed directory: {seen:?}");
    // The process runs as the same user as the guest, but cannot access the guest's descriptors.
    let script = "for n in $(seq 0 40); do \
                      (echo x > /proc/1/fd/$n) && echo wrote $n; \
                      (exec 9< /proc/1/fd/$n) && echo opened $n; \
                      readlink /proc/1/fd/$n && echo read $n; \
                  done; id -u";
    let seen = run(&channel, shell(script), None).await;
    assert_eq!(seen.text(), "1000\n", "{seen:?}");
    let own = "id -u; grep Uid: /proc/1/status";
    let seen = run(&channel, shell(own), None).await;
    assert!(seen.text().contains("Uid:\t1000\t1000\t1000\t1000"), "{seen:?}");
    assert_eq!(ask(&channel, &stop(50)).await, GuestEvent::Done);
    assert!(bottle.exited().await.success());
}

#[tokio::test]
async fn confirms_a_stop_before_the_streams_end() {
    let mut bottle = Bottle::start_on_stdio();
    let channel = bottle.connect().await;
    provision(&channel).await;
    let agent = channel.open(&GuestRequest::StartAgent(shell("sleep 1000"))).await.unwrap();
    let client = attach(&channel, false).await;
    assert_eq!(ask(&channel, &stop(1000)).await, GuestEvent::Done);
    assert_eq!(all(agent).await.exit(), Some(Exit::Signal(15)));
    assert_eq!(all(client).await.exit(), Some(Exit::Signal(15)));
    assert!(bottle.exited().await.success());
}
