//! Tests the agent's terminal (sizes, scrollback, control, read-only clients), and agents without a terminal.

use bottle_channel::Event;
use bottle_protocol::session::guest::{
    AgentState, ClientMessage, Exit, FailureKind, GuestEvent, GuestRequest, Logs, Process, SCROLLBACK, STDIN,
    Size,
};
use tokio::time::timeout;

use crate::bottle::{Bottle, SIZE, SOON, Seen, all, ask, attach, run, shell};

fn on_terminal(script: &str) -> GuestRequest {
    GuestRequest::StartAgent(Process { terminal: Some(SIZE), ..shell(script) })
}

async fn status(channel: &bottle_channel::Channel) -> AgentState {
    match ask(channel, &GuestRequest::Status).await {
        GuestEvent::Status { agent, troubles, .. } if troubles.is_empty() => agent,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_exec_on_a_terminal_has_its_size_and_keys() {
    let (_bottle, channel) = Bottle::ready().await;
    let request = Process { terminal: Some(SIZE), ..shell("tty; stty size; read x; stty size; exec cat") };
    let mut stream = channel.open(&GuestRequest::Exec(request)).await.unwrap();
    let mut seen = Seen::default();
    seen.until(&mut stream, "24 80").await;
    assert!(seen.text().starts_with("/dev/pts/"), "{:?}", seen.text());
    stream.message(&ClientMessage::Resize(Size { columns: 132, rows: 50 })).await.unwrap();
    stream.data(STDIN, b"\r").await.unwrap();
    seen.until(&mut stream, "50 132").await;
    // A shell that switches between two programs may lose input, so the test waits for the output of the last program.
    stream.data(STDIN, b"ready\r").await.unwrap();
    seen.until(&mut stream, "ready\r\nready").await;
    // Ctrl-C is a byte that the terminal converts to a signal.
    stream.data(STDIN, b"\x03").await.unwrap();
    assert_eq!(seen.rest(&mut stream).await.exit(), Some(Exit::Signal(2)));
}

#[tokio::test]
async fn attaches_to_detaches_from_and_reattaches_to_an_agent() {
    let (_bottle, channel) = Bottle::ready().await;
    assert_eq!(status(&channel).await, AgentState::Waiting);
    let script = "echo hello; while read line; do echo got $line; [ $line = bye ] && exit 4; done";
    let agent = channel.open(&on_terminal(script)).await.unwrap();
    let mut first = attach(&channel, false).await;
    let mut seen = Seen::default();
    seen.until(&mut first, "hello").await;
    first.data(STDIN, b"one\r").await.unwrap();
    seen.until(&mut first, "got one").await;
    first.end().await.unwrap();
    assert!(seen.rest(&mut first).await.reset.is_none());
    assert_eq!(status(&channel).await, AgentState::Running);

    let mut second = attach(&channel, false).await;
    let mut seen = Seen::default();
    seen.until(&mut second, "got one").await;
    assert!(seen.text().contains("hello"));
    second.data(STDIN, b"bye\r").await.unwrap();
    let seen = seen.rest(&mut second).await;
    assert!(seen.text().contains("got bye"));
    assert_eq!(seen.exit(), Some(Exit::Code(4)));
    assert_eq!(all(agent).await.exit(), Some(Exit::Code(4)));
    assert_eq!(status(&channel).await, AgentState::Exited(Exit::Code(4)));

    // The output remains available after the agent has exited.
    let seen = all(attach(&channel, false).await).await;
    assert!(seen.text().contains("got bye"));
    assert_eq!(seen.exit(), Some(Exit::Code(4)));
}

#[tokio::test]
async fn a_second_client_takes_control_and_the_first_is_notified() {
    let (_bottle, channel) = Bottle::ready().await;
    let _agent = channel.open(&on_terminal("echo up; read x; echo got $x; read y")).await.unwrap();
    let mut first = attach(&channel, false).await;
    let mut seen_first = Seen::default();
    seen_first.until(&mut first, "up").await;
    let mut second = attach(&channel, false).await;
    let mut seen_second = Seen::default();
    seen_second.until(&mut second, "up").await;
    let reason = seen_first.rest(&mut first).await.reset.expect("the first loses its stream");
    assert_eq!(reason, "another client has attached to the terminal");
    second.data(STDIN, b"mine\r").await.unwrap();
    seen_second.until(&mut second, "got mine").await;
}

#[tokio::test]
async fn a_read_only_client_sees_everything_and_changes_nothing() {
    let (_bottle, channel) = Bottle::ready().await;
    let _agent = channel.open(&on_terminal("echo up; read x; stty size; echo got $x")).await.unwrap();
    let mut holder = attach(&channel, false).await;
    let mut watcher = attach(&channel, true).await;
    let (mut controlling, mut watching) = (Seen::default(), Seen::default());
    controlling.until(&mut holder, "up").await;
    watching.until(&mut watcher, "up").await;
    watcher.message(&ClientMessage::Resize(Size { columns: 1, rows: 1 })).await.unwrap();
    watcher.message(&ClientMessage::Signal { signal: 9 }).await.unwrap();
    watcher.data(STDIN, b"intruder\r").await.unwrap();
    // When this response arrives, the guest has already read the watcher's input.
    assert_eq!(run(&channel, shell("true"), None).await.exit(), Some(Exit::Code(0)));
    holder.data(STDIN, b"owner\r").await.unwrap();
    let watched = watching.rest(&mut watcher).await;
    assert!(watched.text().contains("24 80") && watched.text().contains("got owner"), "{watched:?}");
    assert_eq!(watched.exit(), Some(Exit::Code(0)));
    assert_eq!(controlling.rest(&mut holder).await.exit(), Some(Exit::Code(0)));
}

#[tokio::test]
async fn the_agent_starts_with_the_size_of_a_waiting_client() {
    let (_bottle, channel) = Bottle::ready().await;
    let stream = attach(&channel, false).await;
    stream.message(&ClientMessage::Resize(Size { columns: 99, rows: 33 })).await.unwrap();
    // The guest handles the message before it responds to the next request.
    status(&channel).await;
    status(&channel).await;
    let _agent = channel.open(&on_terminal("stty size")).await.unwrap();
    assert!(all(stream).await.text().contains("33 99"));
}

#[tokio::test]
async fn a_detached_agent_keeps_running_and_its_last_mebibyte_is_buffered() {
    let (_bottle, channel) = Bottle::ready().await;
    let script = "i=0; while [ $i -lt 40000 ]; do echo line $i ........................................; \
                  i=$((i+1)); done";
    let agent = channel.open(&on_terminal(script)).await.unwrap();
    assert_eq!(all(agent).await.exit(), Some(Exit::Code(0)));
    let seen = all(attach(&channel, false).await).await;
    assert!(seen.out.len() <= SCROLLBACK && seen.out.len() > SCROLLBACK - (32 << 10));
    assert!(seen.text().starts_with("line "), "{:?}", &seen.text()[..40]);
    assert!(seen.text().contains("line 39999 "));

    let logs = |tail, follow| GuestRequest::Logs(Logs { tail, follow });
    let seen = all(channel.open(&logs(Some(3), false)).await.unwrap()).await;
    let lines: Vec<_> = seen.text().lines().map(|l| l[..10].to_owned()).collect();
    assert_eq!(lines, ["line 39997", "line 39998", "line 39999"]);
    let seen = all(channel.open(&logs(Some(1), true)).await.unwrap()).await;
    assert_eq!((seen.text().lines().count(), seen.reset), (1, None));
}

#[tokio::test]
async fn a_waiting_client_gets_all_output_of_a_piped_agent() {
    let (_bottle, channel) = Bottle::ready().await;
    const TOTAL: usize = 20 << 20;
    let stream = attach(&channel, false).await;
    stream.data(STDIN, b"piped in").await.unwrap();
    stream.data(STDIN, b"").await.unwrap();
    status(&channel).await;
    let script = format!("cat >&2; yes 0123456 | head -c {TOTAL}");
    let request = Process { stdin: true, ..shell(&script) };
    let mut agent = channel.open(&GuestRequest::StartAgent(request)).await.unwrap();
    assert!(matches!(agent.receive().await.unwrap(), GuestEvent::Started { .. }));
    // The client reads nothing for a while, so the agent must wait.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(status(&channel).await, AgentState::Running);
    let seen = all(stream).await;
    assert_eq!(seen.err, b"piped in");
    assert_eq!(seen.out.len(), TOTAL);
    assert!(seen.out.chunks(8).all(|line| line == b"0123456\n"));
    assert_eq!(seen.exit(), Some(Exit::Code(0)));
}

#[tokio::test]
async fn buffers_output_for_the_first_client_but_does_not_delay_the_exit() {
    const TOTAL: usize = 8 << 20;
    let script = format!("yes 0123456 | head -c {TOTAL}");
    let awaited = || GuestRequest::StartAgent(Process { awaited: true, ..shell(&script) });
    let (_bottle, channel) = Bottle::ready().await;
    let _agent = channel.open(&awaited()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let seen = all(attach(&channel, false).await).await;
    assert_eq!((seen.out.len(), seen.exit()), (TOTAL, Some(Exit::Code(0))));

    // The bottle can be stopped even if no client ever attaches.
    let (_other, channel) = Bottle::ready().await;
    let _agent = channel.open(&awaited()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let stop = GuestRequest::Stop(bottle_protocol::session::guest::Stop { grace_ms: 0, work: None });
    assert_eq!(ask(&channel, &stop).await, GuestEvent::Done);
}

#[tokio::test]
async fn a_slow_read_only_client_delays_no_one() {
    let (_bottle, channel) = Bottle::ready().await;
    let watcher = attach(&channel, true).await;
    let request = GuestRequest::StartAgent(shell("yes 0123456 | head -c 20000000"));
    let agent = channel.open(&request).await.unwrap();
    assert_eq!(all(agent).await.exit(), Some(Exit::Code(0)));
    let seen = all(watcher).await;
    assert_eq!(seen.exit(), Some(Exit::Code(0)));
    assert!(seen.out.len() < 20_000_000);
}

#[tokio::test]
async fn refuses_requests_in_the_wrong_state() {
    let bottle = Bottle::start();
    let channel = bottle.connect().await;
    let refused = |event: GuestEvent| match event {
        GuestEvent::Failed(failure) => assert_eq!(failure.kind, FailureKind::BadState, "{failure:?}"),
        other => panic!("{other:?}"),
    };
    let mut early = attach(&channel, false).await;
    refused(early.receive().await.unwrap());
    crate::bottle::provision(&channel).await;
    let twice = bottle_protocol::session::guest::Provision {
        env: [].into(),
        secret: [].into(),
        files: Vec::new(),
        work: None,
        processes: None,
    };
    refused(ask(&channel, &GuestRequest::Provision(twice)).await);
    let _agent = channel.open(&on_terminal("read x")).await.unwrap();
    let mut stream = attach(&channel, false).await;
    stream.message(&ClientMessage::Resize(SIZE)).await.unwrap();
    refused(ask(&channel, &on_terminal("true")).await);
    let mut odd = channel.open(&"no request").await.unwrap();
    assert!(matches!(timeout(SOON, odd.next()).await.unwrap(), Some(Event::Reset(_))));
    stream.end().await.unwrap();
    assert!(timeout(SOON, stream.next()).await.is_ok());
}
