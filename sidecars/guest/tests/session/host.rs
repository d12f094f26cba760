//! Tests that a new connection of the host replaces the previous one.

use bottle_channel::{Channel, Side};
use bottle_protocol::session::guest::{Exit, GuestEvent, GuestRequest, Process, ProvisionedFile, STDIN};
use bottle_protocol::session::{Hello, Role};
use tokio::time::timeout;

use crate::bottle::{Bottle, SIZE, SOON, Seen, all, ask, attach, run, shell};

#[tokio::test]
async fn a_new_host_replaces_the_old_one_and_keeps_the_agent() {
    let (bottle, first) = Bottle::ready().await;
    let request = Process { terminal: Some(SIZE), ..shell("echo up; read x; echo got $x") };
    let mut agent = first.open(&GuestRequest::StartAgent(request)).await.unwrap();
    assert!(matches!(agent.receive().await.unwrap(), GuestEvent::Started { .. }));
    let mut stream = attach(&first, false).await;
    Seen::default().until(&mut stream, "up").await;
    let second = bottle.connect().await;
    timeout(SOON, first.closed()).await.expect("the old connection is closed");
    let mut stream = attach(&second, false).await;
    let mut seen = Seen::default();
    seen.until(&mut stream, "up").await;
    stream.data(STDIN, b"again\r").await.unwrap();
    let seen = seen.rest(&mut stream).await;
    assert!(seen.text().contains("got again"));
    assert_eq!(seen.exit(), Some(Exit::Code(0)));
}

#[tokio::test]
async fn a_killed_host_does_not_affect_the_bottle() {
    let (bottle, first) = Bottle::ready().await;
    let mut agent = first.open(&GuestRequest::StartAgent(shell("sleep 1; echo survived"))).await.unwrap();
    assert!(matches!(agent.receive().await.unwrap(), GuestEvent::Started { .. }));
    drop((agent, first));
    let second = bottle.connect().await;
    let seen = all(attach(&second, false).await).await;
    assert_eq!((seen.text().as_str(), seen.exit()), ("survived\n", Some(Exit::Code(0))));
}

#[tokio::test]
async fn a_peer_that_is_not_a_keeper_does_not_replace_the_host() {
    let (bottle, channel) = Bottle::ready().await;
    let socket = bottle.root().parent().unwrap().join("guest.sock");
    let stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
    let hello = Hello::of(Role::Client);
    let (stranger, _incoming, _) = Channel::establish(stream, Side::Dialed, hello).await.unwrap();
    timeout(SOON, stranger.closed()).await.expect("only a keeper is served");
    drop(tokio::net::UnixStream::connect(&socket).await.unwrap());
    assert_eq!(run(&channel, shell("exit 3"), None).await.exit(), Some(Exit::Code(3)));
}

#[tokio::test]
async fn writes_provisioned_files_with_their_mode_inside_the_root() {
    use std::os::unix::fs::PermissionsExt;
    let bottle = Bottle::start();
    let outside = bottle.root().parent().unwrap().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, bottle.root().join("link")).unwrap();
    std::os::unix::fs::symlink("/target", bottle.root().join("inner")).unwrap();
    std::fs::create_dir(bottle.root().join("target")).unwrap();
    let file = |path: &str, mode| ProvisionedFile { path: path.to_owned(), mode, content: "text".into() };
    let request = |files| {
        GuestRequest::Provision(bottle_protocol::session::guest::Provision {
            env: [].into(),
            secret: [].into(),
            files,
            work: None,
            processes: None,
        })
    };
    let channel = bottle.connect().await;
    for escape in ["/link/file", "/", "/workspace/.."] {
        let answer = ask(&channel, &request(vec![file(escape, 0o600)])).await;
        assert!(matches!(answer, GuestEvent::Failed(_)), "{escape}: {answer:?}");
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let files = vec![
        file("/run/bottle/ca.pem", 0o644),
        file("/../../etc/deep/secret", 0o400),
        file("/inner/followed", 0o4777),
    ];
    assert_eq!(ask(&channel, &request(files)).await, GuestEvent::Done);
    for (path, mode) in [("run/bottle/ca.pem", 0o644), ("etc/deep/secret", 0o400), ("target/followed", 0o777)]
    {
        let path = bottle.root().join(path);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode, "{path:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }
}
