//! Tests copying files into and out of a bottle, with valid and hostile archives.

use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_protocol::session::guest::{CopyIn, CopyOut, FailureKind, GuestEvent, GuestRequest, STDIN};
use tar::{Archive, Builder, EntryType, Header};
use tokio::time::timeout;

use crate::bottle::{Bottle, SOON, Seen, all};

async fn copy_out(channel: &Channel, path: &str) -> Seen {
    let request = GuestRequest::CopyOut(CopyOut { path: path.to_owned() });
    all(channel.open(&request).await.unwrap()).await
}

async fn copy_in(channel: &Channel, path: &str, archive: &[u8]) -> GuestEvent {
    let request = GuestRequest::CopyIn(CopyIn { path: path.to_owned() });
    let mut stream = channel.open(&request).await.unwrap();
    stream.data(STDIN, archive).await.unwrap();
    stream.end().await.unwrap();
    timeout(SOON, stream.receive()).await.unwrap().unwrap()
}

/// Lists each member of an archive as `name mode content-or-target`.
fn listing(archive: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        if let Some(target) = entry.link_name().unwrap() {
            content = format!("-> {}", target.display());
        }
        let mode = entry.header().mode().unwrap();
        lines.push(format!("{} {mode:o} {content}", entry.path().unwrap().display()));
    }
    lines.sort();
    lines
}

fn member(kind: EntryType, name: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_size(content.len() as u64);
    // Writes the names into the header directly, without the checks of the library, as an attacker would.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, content: &str) -> Vec<u8> {
    member(EntryType::Regular, name, "", content.as_bytes())
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = members.concat();
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

fn write(path: &Path, content: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn copies_a_tree_out_and_in_again() {
    let (bottle, channel) = Bottle::ready().await;
    let tree = bottle.root().join("workspace/tree");
    let long = "long-name-".repeat(20);
    write(&tree.join("run.sh"), "#!/bin/sh", 0o4755);
    write(&tree.join("deep").join(&long), "deep", 0o640);
    symlink("../elsewhere", tree.join("link")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(tree.join("pipe")).status().unwrap();
    assert!(pipe.success());
    let seen = copy_out(&channel, "tree").await;
    assert_eq!(seen.events, [GuestEvent::Done]);
    let expected = [
        "tree 755 ".to_owned(),
        "tree/deep 755 ".to_owned(),
        format!("tree/deep/{long} 640 deep"),
        "tree/link 777 -> ../elsewhere".to_owned(),
        "tree/run.sh 755 #!/bin/sh".to_owned(),
    ];
    assert_eq!(listing(&seen.out), expected, "and the pipe is left out");

    assert_eq!(copy_in(&channel, "/new/place", &seen.out).await, GuestEvent::Done);
    let again = copy_out(&channel, "/new/place/tree").await;
    assert_eq!(listing(&again.out), expected);
    let mode = std::fs::metadata(bottle.root().join("new/place/tree/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);

    let one = copy_out(&channel, "/workspace/tree/run.sh").await;
    assert_eq!(listing(&one.out), ["run.sh 755 #!/bin/sh"]);
    let whole = copy_out(&channel, "/").await;
    assert!(listing(&whole.out).contains(&"workspace/tree/run.sh 755 #!/bin/sh".to_owned()));
}

#[tokio::test]
async fn copies_twenty_megabytes_with_a_slow_reader_in_both_directions() {
    let (bottle, channel) = Bottle::ready().await;
    let content: Vec<u8> = (0..20 << 20).map(|i: u32| i.to_be_bytes()[3]).collect();
    std::fs::write(bottle.root().join("workspace/big"), &content).unwrap();
    let request = GuestRequest::CopyOut(CopyOut { path: "big".to_owned() });
    let stream = channel.open(&request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let seen = all(stream).await;
    assert_eq!(seen.events, [GuestEvent::Done]);
    assert_eq!(copy_in(&channel, "copies", &seen.out).await, GuestEvent::Done);
    assert!(std::fs::read(bottle.root().join("workspace/copies/big")).unwrap() == content);
}

#[tokio::test]
async fn a_link_in_the_place_of_a_file_is_not_followed() {
    let (bottle, channel) = Bottle::ready().await;
    let workspace = bottle.root().join("workspace");
    write(&workspace.join("tree/large"), "not asked for", 0o644);
    symlink("tree", workspace.join("report")).unwrap();
    symlink("/workspace/tree/large", workspace.join("absolute")).unwrap();
    for (path, target) in
        [("report", "\"tree\""), ("report/", "\"tree\""), ("absolute", "\"/workspace/tree/large\"")]
    {
        let seen = copy_out(&channel, path).await;
        let [GuestEvent::Failed(failure)] = &seen.events[..] else { panic!("{path}: {seen:?}") };
        assert!(failure.message.contains(&format!("a link to {target}")), "{failure:?}");
        assert!(!seen.text().contains("not asked for"), "{seen:?}");
    }
    // A symlink in the path of the file is followed, because the user named this path.
    assert_eq!(listing(&copy_out(&channel, "report/large").await.out), ["large 644 not asked for"]);
}

#[tokio::test]
async fn copies_nothing_from_outside_the_bottle() {
    let (bottle, channel) = Bottle::ready().await;
    let outside = bottle.root().parent().unwrap().join("outside");
    write(&outside.join("secret"), "host's own", 0o644);
    let workspace = bottle.root().join("workspace");
    symlink(&outside, workspace.join("absolute")).unwrap();
    symlink("../../outside/secret", workspace.join("relative")).unwrap();
    std::fs::create_dir(workspace.join("directory")).unwrap();
    symlink(&outside, workspace.join("directory/link")).unwrap();
    for path in ["absolute/secret", "relative", "../../outside/secret", "/no/such", "directory/link/secret"] {
        let seen = copy_out(&channel, path).await;
        let [GuestEvent::Failed(failure)] = &seen.events[..] else { panic!("{path}: {seen:?}") };
        assert_eq!(failure.kind, FailureKind::BadPath);
        assert!(failure.message.contains(path), "{failure:?}");
        assert!(!seen.text().contains("host's own"));
    }
    // A symlink in a directory is copied as a symlink.
    let seen = copy_out(&channel, "directory").await;
    let link = format!("directory/link 777 -> {}", outside.display());
    assert_eq!(listing(&seen.out), ["directory 755 ".to_owned(), link]);
}

#[tokio::test]
async fn hostile_archives_change_nothing_outside_their_directory() {
    let (bottle, channel) = Bottle::ready().await;
    let outside = bottle.root().parent().unwrap().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let workspace = bottle.root().join("workspace");
    std::fs::create_dir_all(workspace.join("in/directory")).unwrap();
    symlink(&outside, workspace.join("in/planted")).unwrap();
    symlink(outside.join("victim"), workspace.join("in/file-link")).unwrap();
    let outside_name = outside.to_str().unwrap().to_owned();
    let link = |name: &str, target: &str| member(EntryType::Symlink, name, target, b"");
    let cases = [
        (vec![file("../escape", "x")], "points outside"),
        (vec![file("/escape", "x")], "points outside"),
        (vec![file("", "x")], "has no name"),
        (vec![link("", "x")], "has no name"),
        (vec![file("a/../../escape", "x")], "points outside"),
        (vec![link("trick", &outside_name), file("trick/escape", "x")], "in the place of a directory"),
        (vec![link("up", ".."), file("up/escape", "x")], "in the place of a directory"),
        (vec![file("planted/escape", "x")], "in the place of a directory"),
        (vec![member(EntryType::Directory, "planted", "", b"")], "in the place of a directory"),
        (vec![file("directory", "x")], "a directory is in its place"),
        (vec![member(EntryType::Link, "hard", "/etc/passwd", b"")], "points outside"),
        (vec![member(EntryType::Link, "hard", "../secret", b"")], "points outside"),
        (
            vec![link("planted-link", &outside_name), member(EntryType::Link, "hard", "planted-link", b"")],
            "hard link",
        ),
        (vec![member(EntryType::Char, "device", "", b"")], "a device or a pipe"),
        (vec![member(EntryType::Block, "device", "", b"")], "a device or a pipe"),
        (vec![member(EntryType::Fifo, "pipe", "", b"")], "a device or a pipe"),
        (vec![member(EntryType::GNULongName, "x", "", &[b'n'; 5000])], "5000 bytes"),
        (
            vec![member(EntryType::XHeader, "x", "", b"19 path=../escape1\n"), file("ok", "x")],
            "points outside",
        ),
        (vec![member(EntryType::XHeader, "x", "", b"12 size=999\n"), file("ok", "x")], "size"),
        (vec![file(&"d/".repeat(49), "x").repeat(1), vec![1; 512]], "cannot copy in"),
    ];
    for (members, word) in cases {
        let answer = copy_in(&channel, "in", &archive(&members)).await;
        let GuestEvent::Failed(failure) = answer else { panic!("{word}: {answer:?}") };
        assert!(failure.message.contains(word), "{word}: {failure:?}");
    }
    // If a symlink has the file's name, the copy replaces the symlink and does not write to its target.
    let answer = copy_in(&channel, "in", &archive(&[file("file-link", "mine")])).await;
    assert_eq!(answer, GuestEvent::Done);
    assert!(std::fs::symlink_metadata(workspace.join("in/file-link")).unwrap().is_file());
    // A symlink to a directory outside the bottle is resolved inside the bottle's root.
    let answer = copy_in(&channel, "in/planted/sub", &archive(&[file("inside", "x")])).await;
    assert!(matches!(answer, GuestEvent::Done | GuestEvent::Failed(_)), "{answer:?}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert!(!bottle.root().parent().unwrap().join("escape").exists());
    assert!(!bottle.root().join("escape").exists() && !workspace.join("escape").exists());
}

#[tokio::test]
async fn refuses_a_truncated_or_aborted_archive() {
    let (bottle, channel) = Bottle::ready().await;
    let request = || GuestRequest::CopyIn(CopyIn { path: "part".to_owned() });
    let bytes = archive(&[file("one", "1"), member(EntryType::Regular, "two", "", &[b'2'; 4000])]);
    // The archive is truncated in its second file, although the client ends the stream properly.
    let mut stream = channel.open(&request()).await.unwrap();
    stream.data(STDIN, &bytes[..2000]).await.unwrap();
    stream.end().await.unwrap();
    let answer: GuestEvent = timeout(SOON, stream.receive()).await.unwrap().unwrap();
    assert!(matches!(answer, GuestEvent::Failed(_)), "{answer:?}");
    // Each aborted copy releases its permit.
    for _ in 0..12 {
        let stream = channel.open(&request()).await.unwrap();
        stream.data(STDIN, &bytes[..700]).await.unwrap();
        drop(stream);
        let request = GuestRequest::CopyOut(CopyOut { path: "/".to_owned() });
        drop(channel.open(&request).await.unwrap());
    }
    let deadline = tokio::time::Instant::now() + SOON;
    while copy_in(&channel, "whole", &bytes).await != GuestEvent::Done {
        assert!(tokio::time::Instant::now() < deadline, "a place for a copy comes back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(std::fs::read(bottle.root().join("workspace/whole/two")).unwrap().len(), 4000);
}

#[tokio::test]
async fn refuses_or_unpacks_random_bytes() {
    let (_bottle, channel) = Bottle::ready().await;
    let mut noise = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..60 {
        let mut bytes = archive(&[file("a", "content"), file("b/c", "more")]);
        for _ in 0..round {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            let at = usize::try_from(noise % bytes.len() as u64).unwrap();
            bytes[at] = noise.to_be_bytes()[3];
        }
        let answer = copy_in(&channel, &format!("noise/{round}"), &bytes).await;
        assert!(matches!(answer, GuestEvent::Done | GuestEvent::Failed(_)), "{answer:?}");
    }
}

#[test]
fn the_hand_made_archives_are_valid() {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o6755);
    header.set_cksum();
    builder.append_data(&mut header, "one", &b"1"[..]).unwrap();
    assert_eq!(listing(&builder.into_inner().unwrap()), listing(&archive(&[file("one", "1")])));
}
