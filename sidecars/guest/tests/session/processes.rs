//! Tests running processes: output, input, exit codes, signals, failures and back-pressure.

use std::time::Duration;

use bottle_protocol::session::guest::{
    ClientMessage, Exit, FailureKind, GuestEvent, GuestRequest, Process, STDIN,
};
use tokio::time::timeout;

use crate::bottle::{Bottle, SOON, Seen, all, ask, process, run, shell, stop};

#[tokio::test]
async fn carries_both_outputs_the_input_and_the_exit_code() {
    let (_bottle, channel) = Bottle::ready().await;
    let seen = run(&channel, shell("cat; echo warning >&2; exit 7"), Some(b"words")).await;
    assert_eq!((seen.out.as_slice(), seen.err.as_slice()), (&b"words"[..], &b"warning\n"[..]));
    assert!(matches!(seen.events[0], GuestEvent::Started { pid } if pid > 0));
    assert_eq!(seen.exit(), Some(Exit::Code(7)));
}

#[tokio::test]
async fn merged_outputs_keep_their_order() {
    let (_bottle, channel) = Bottle::ready().await;
    let script = shell("for i in $(seq 200); do echo $i; echo $i >&2; done; exit 7");
    let seen = run(&channel, Process { merged: true, ..script }, None).await;
    let expected: String = (1..=200).map(|number| format!("{number}\n{number}\n")).collect();
    assert_eq!((seen.text(), seen.err.len(), seen.exit()), (expected, 0, Some(Exit::Code(7))));
}

#[tokio::test]
async fn a_process_has_only_the_provisioned_environment() {
    let (bottle, channel) = Bottle::ready().await;
    let mut request = process(&["env"]);
    request.env.insert("OWN".to_owned(), "too".to_owned());
    let seen = run(&channel, request, None).await;
    let mut names: Vec<_> = seen.text().lines().map(|l| l.split('=').next().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["OWN", "PATH", "PROVISIONED", "WORD"]);
    let seen = run(&channel, shell("ls /proc/self/fd | wc -l; pwd"), None).await;
    let expected = format!("4\n{}\n", bottle.root().join("workspace").display());
    assert_eq!(seen.text(), expected, "0, 1, 2 and the directory that ls itself opened");
}

#[tokio::test]
async fn reports_why_a_program_cannot_run() {
    let (bottle, channel) = Bottle::ready().await;
    let plain = bottle.root().join("workspace/plain");
    std::fs::write(&plain, "no program").unwrap();
    let mut elsewhere = process(&["true"]);
    elsewhere.cwd = Some("/not/there".to_owned());
    let mut unknown = process(&["true"]);
    unknown.user = Some("nobody-of-that-name".to_owned());
    for (request, kind, word) in [
        (process(&["no-such-program"]), FailureKind::NotFound, "no-such-program"),
        (process(&["./plain"]), FailureKind::NotExecutable, "plain"),
        (process(&["/"]), FailureKind::NotExecutable, "\"/\""),
        (elsewhere, FailureKind::BadPath, "/not/there"),
        (unknown, FailureKind::Other, "nobody-of-that-name"),
        (process(&[]), FailureKind::Other, "names no program"),
        (process(&["echo", "a\0b"]), FailureKind::Other, "echo"),
    ] {
        let answer = ask(&channel, &GuestRequest::Exec(request)).await;
        let GuestEvent::Failed(failure) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.message.contains(word), "{failure:?}");
    }
}

#[tokio::test]
async fn signals_the_process_and_its_group() {
    let (_bottle, channel) = Bottle::ready().await;
    // A child in the same process group keeps the output open. The stream still ends, because the signal reaches the
    // child too.
    let mut stream = channel.open(&GuestRequest::Exec(shell("sleep 1000 & echo up; wait"))).await.unwrap();
    let mut seen = Seen::default();
    seen.until(&mut stream, "up").await;
    stream.message(&ClientMessage::Signal { signal: 15 }).await.unwrap();
    assert_eq!(seen.rest(&mut stream).await.exit(), Some(Exit::Signal(15)));
    // A signal that has no name must not confuse the reaping loop.
    let seen = run(&channel, shell("kill -40 $$"), None).await;
    assert_eq!(seen.exit(), Some(Exit::Signal(40)));
}

#[tokio::test]
async fn a_background_process_does_not_delay_the_exit() {
    let (_bottle, channel) = Bottle::ready().await;
    let seen = timeout(SOON, run(&channel, shell("sleep 1000 & echo done"), None)).await.unwrap();
    assert_eq!((seen.text().as_str(), seen.exit()), ("done\n", Some(Exit::Code(0))));
}

#[tokio::test]
async fn hangs_up_the_process_of_a_disconnected_client() {
    let (bottle, channel) = Bottle::ready().await;
    let mark = bottle.root().join("workspace/hung-up");
    let script = "trap 'touch hung-up; exit' HUP; echo up; while :; do sleep 0.05; done";
    let mut stream = channel.open(&GuestRequest::Exec(shell(script))).await.unwrap();
    Seen::default().until(&mut stream, "up").await;
    drop(stream);
    let appeared = async {
        while !mark.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, appeared).await.expect("the process was hung up");
}

#[tokio::test]
async fn sends_twenty_megabytes_to_a_slow_reader_without_loss() {
    let (_bottle, channel) = Bottle::ready().await;
    const TOTAL: usize = 20 << 20;
    let request = shell(&format!("yes abcdefg | head -c {TOTAL}; echo end >&2"));
    let stream = channel.open(&GuestRequest::Exec(request)).await.unwrap();
    // The client reads nothing for a while. The process must wait, and the guest must not buffer more.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = all(stream).await;
    assert_eq!(seen.out.len(), TOTAL);
    assert!(seen.out.chunks(8).all(|line| line == b"abcdefg\n"));
    assert_eq!((seen.err.as_slice(), seen.exit()), (&b"end\n"[..], Some(Exit::Code(0))));
}

#[tokio::test]
async fn sends_twenty_megabytes_of_input_to_a_slow_process() {
    let (_bottle, channel) = Bottle::ready().await;
    const TOTAL: usize = 20 << 20;
    let seen = run(&channel, shell("sleep 0.3; wc -c"), Some(&vec![b'x'; TOTAL])).await;
    assert_eq!(seen.text().trim(), TOTAL.to_string());
}

#[tokio::test]
async fn the_end_of_the_stream_closes_the_input() {
    let (_bottle, channel) = Bottle::ready().await;
    let mut request = process(&["cat"]);
    request.stdin = true;
    let stream = channel.open(&GuestRequest::Exec(request)).await.unwrap();
    stream.data(STDIN, b"to the end").await.unwrap();
    stream.end().await.unwrap();
    assert_eq!(all(stream).await.text(), "to the end");
}

#[tokio::test]
async fn many_concurrent_processes_keep_their_own_exit_codes() {
    let (_bottle, channel) = Bottle::ready().await;
    let mut tasks = tokio::task::JoinSet::new();
    for code in 0..60u8 {
        let channel = channel.clone();
        tasks.spawn(async move { (code, run(&channel, shell(&format!("exit {code}")), None).await) });
    }
    while let Some(done) = tasks.join_next().await {
        let (code, seen) = done.unwrap();
        assert_eq!(seen.exit(), Some(Exit::Code(code)));
    }
}

#[tokio::test]
async fn starts_no_process_before_provisioning() {
    let bottle = Bottle::start();
    let channel = bottle.connect().await;
    for request in [GuestRequest::Exec(process(&["true"])), GuestRequest::StartAgent(process(&["true"]))] {
        let answer = ask(&channel, &request).await;
        assert!(matches!(&answer, GuestEvent::Failed(f) if f.kind == FailureKind::BadState), "{answer:?}");
    }
    assert_eq!(ask(&channel, &stop(0)).await, GuestEvent::Done);
}
