//! Tests file requests over the channel: sending and receiving data, and clients that disconnect.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use bottle_protocol::session::files::{FileEvent, FileRequest, Grep, Read, Scope, Write};
use bottle_protocol::session::guest::{FailureKind, GuestEvent, GuestRequest, STDIN};
use tokio::time::{sleep, timeout};

use crate::bottle::{Bottle, SOON, all, ask};

fn write(path: &str) -> GuestRequest {
    GuestRequest::Files(FileRequest::Write(Write { path: path.into(), new: false }))
}

fn read(path: &str) -> GuestRequest {
    GuestRequest::Files(FileRequest::Read(Read {
        path: path.into(),
        offset: 0,
        max: u64::MAX,
        redact: false,
    }))
}

#[tokio::test]
async fn a_large_file_goes_in_and_out() {
    let (bottle, channel) = Bottle::ready().await;
    fs::create_dir_all(bottle.root().join("workspace")).unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(|number| number.to_le_bytes()).collect();
    let mut stream = channel.open(&write("dir/large")).await.unwrap();
    for piece in content.chunks(30_000) {
        stream.data(STDIN, piece).await.unwrap();
    }
    stream.end().await.unwrap();
    let bytes = content.len() as u64;
    let written: GuestEvent = timeout(SOON, stream.receive()).await.unwrap().unwrap();
    assert_eq!(written, GuestEvent::Files(FileEvent::Written { bytes, created: true }));
    let seen = all(channel.open(&read("dir/large")).await.unwrap()).await;
    assert_eq!(seen.events, [GuestEvent::Files(FileEvent::Read { next: bytes, size: bytes })]);
    assert!(seen.out == content);
}

#[tokio::test]
async fn a_client_that_goes_away_changes_nothing() {
    let (bottle, channel) = Bottle::ready().await;
    let workspace = bottle.root().join("workspace");
    fs::create_dir_all(&workspace).unwrap();
    fs::write(workspace.join("file"), "old").unwrap();
    let names = || fs::read_dir(&workspace).unwrap().count();
    for path in ["file", "new", "a/b"] {
        let stream = channel.open(&write(path)).await.unwrap();
        stream.data(STDIN, b"half").await.unwrap();
        let begun = async {
            while names() == 1 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, begun).await.expect("the temporary file");
        drop(stream);
        let undone = async {
            while names() > 1 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, undone).await.expect("its removal");
    }
    assert_eq!(fs::read_to_string(workspace.join("file")).unwrap(), "old");
    // There are more clients than threads, and no client reads the answer. All threads must end when the clients
    // disconnect.
    fs::write(workspace.join("huge"), vec![b'x'; 8 << 20]).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..12 {
        waiting.push(channel.open(&read("huge")).await.unwrap());
    }
    sleep(Duration::from_millis(100)).await;
    drop(waiting);
    let seen = all(channel.open(&read("file")).await.unwrap()).await;
    assert_eq!(seen.text(), "old");
}

#[tokio::test]
async fn the_workspace_is_the_boundary() {
    let (bottle, channel) = Bottle::ready().await;
    let workspace = bottle.root().join("workspace");
    fs::create_dir_all(&workspace).unwrap();
    fs::write(bottle.root().join("secret"), "needle").unwrap();
    symlink("../secret", workspace.join("link")).unwrap();
    symlink("..", workspace.join("up")).unwrap();
    for path in ["link", "up/secret", "/secret", "../secret"] {
        match ask(&channel, &read(path)).await {
            GuestEvent::Failed(failure) => assert_eq!(failure.kind, FailureKind::BadPath, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
    let scope = Scope { path: ".".into(), exclude: Vec::new(), git: true };
    let (pattern, include) = ("needle".to_owned(), Vec::new());
    let grep = Grep { scope, pattern, literal: false, ignore_case: false, include, limit: 5, redact: false };
    match ask(&channel, &GuestRequest::Files(FileRequest::Grep(grep))).await {
        GuestEvent::Files(FileEvent::Matches(found)) => assert_eq!((found.matches, found.files), (vec![], 0)),
        other => panic!("{other:?}"),
    }
}
