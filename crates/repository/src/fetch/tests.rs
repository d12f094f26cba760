//! Fetches from real and forged programs into `bottle`'s own git directory, and pulls from this directory into a
//! repository.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;
use crate::objects::{Objects, ObjectsError};
use crate::reflog::LogEntry;
use crate::refs::branch_reference;
use crate::repository::{Repository, RepositoryError};
use crate::store::StoreKind;
use crate::{Directory, Program, locate};

const LOG: LogEntry<'_> = LogEntry { name: "bottle", email: "a@example.com", seconds: 7, message: "pull" };

struct Scene {
    top: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { top: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    /// Makes a repository with `commits` commits.
    fn repository(&self, name: &str, options: &[&str], commits: usize) {
        self.git("", &[&["init", "-q", "-b", "main", name], options].concat());
        (0..commits).for_each(|number| self.commit(name, &format!("{number}\n")));
    }

    fn commit(&self, name: &str, text: &str) {
        fs::write(self.path(name).join("file"), text).expect("written");
        self.git(name, &["add", "-A"]);
        self.git(name, &["commit", "-qm", text]);
    }

    fn git(&self, name: &str, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(self.path(name)).env("GIT_CONFIG_GLOBAL", "/dev/null");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
        let output = git.output().expect("git");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    }

    fn id(&self, name: &str, expression: &str) -> ObjectId {
        ObjectId::parse(&self.git(name, &["rev-parse", expression])).expect("an id")
    }

    fn store(&self, kind: StoreKind) -> Store {
        let program = Program::find(&std::env::var_os("PATH").expect("PATH")).expect("git");
        let directory = tempfile::tempdir_in(self.top.path()).expect("a directory");
        Store::create(&program, directory, kind).expect("created")
    }

    fn opened(&self, name: &str) -> Repository {
        let located = locate::at(&self.path(name)).expect("located").expect("a repository");
        Repository::open(located).expect("opened")
    }

    fn objects(&self, name: &str) -> Objects {
        self.opened(name).objects(&[]).expect("objects")
    }

    /// Fetches from the repository `name`. Also returns the bytes that this side sent.
    async fn fetch(
        &self,
        store: &Store,
        name: &str,
        request: Request<'_>,
    ) -> (Result<Option<Fetched>, FetchError>, String) {
        let mut git = Command::new("git");
        git.args(["upload-pack", "."]).current_dir(self.path(name)).env("GIT_CONFIG_GLOBAL", "/dev/null");
        git.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = tokio::process::Command::from(git).spawn().expect("git");
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        let mut input = child.stdin.take().expect("input");
        let sent = tokio::spawn(async move {
            let mut sent = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = ours.read(&mut buffer).await {
                sent.extend_from_slice(&buffer[..read]);
                let _ = input.write_all(&buffer[..read]).await;
            }
            String::from_utf8(sent).expect("text")
        });
        let fetched = store.fetch(request, child.stdout.take().expect("output"), theirs).await;
        let _ = child.kill().await;
        (fetched, sent.await.expect("sent"))
    }
}

fn head(have: Option<&ObjectId>) -> Request<'_> {
    Request { reference: "HEAD", have }
}

/// Returns the number of objects in the store's own packs.
async fn received(store: &Store) -> u64 {
    let counted = store.git().expect(&["count-objects", "-v"]).await.expect("git");
    let text = String::from_utf8(counted.stdout.bytes).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix("in-pack: ")).expect("a line");
    line.parse().expect("a number")
}

#[tokio::test]
async fn fetches_a_whole_history_and_sends_only_the_wanted_id() {
    for (option, format) in [("sha1", ObjectFormat::Sha1), ("sha256", ObjectFormat::Sha256)] {
        let scene = Scene::new();
        scene.repository("bottle", &["--object-format", option], 3);
        scene.git("bottle", &["tag", "-a", "-m", "x", "v1"]);
        let store = scene.store(StoreKind { format, partial: false });
        let (fetched, sent) = scene.fetch(&store, "bottle", head(None)).await;
        let tip = scene.id("bottle", "HEAD");
        assert_eq!(fetched.expect("fetched").map(|fetched| fetched.tip), Some(tip.clone()));
        assert_eq!(sent.matches(tip.as_str()).count(), 1, "{sent}");
        assert!(sent.contains("want ") && !sent.contains("have ") && !sent.contains("shallow"), "{sent}");
        assert_eq!(received(&store).await, 9);
        store.git().expect(&["fsck", "--strict"]).await.expect("whole");
        let branch = Request { reference: "refs/heads/none", have: None };
        let (none, sent) = scene.fetch(&store, "bottle", branch).await;
        assert_eq!((none.expect("no such reference"), sent.as_str()), (None, "0000"));
    }
}

#[tokio::test]
async fn asks_only_for_what_was_not_given() {
    let scene = Scene::new();
    scene.repository("user", &[], 20);
    scene.git("user", &["gc", "-q"]);
    // The bottle receives a copy of the current objects.
    scene.git("", &["clone", "-q", "user", "bottle"]);
    scene.git("", &["clone", "-q", "--bare", "user", "given"]);
    let given = scene.id("user", "HEAD");
    // The user continues to work in private.
    scene.commit("user", "private\n");
    scene.commit("bottle", "work\n");
    let store = scene.store(StoreKind::default());
    let given_objects = Directory::open(&scene.path("given/objects")).expect("opened");
    store.borrow(Objects::open(&given_objects, &[]).expect("objects")).expect("borrowed");
    let (fetched, sent) = scene.fetch(&store, "bottle", head(Some(&given))).await;
    assert_eq!(fetched.expect("fetched").map(|fetched| fetched.tip), Some(scene.id("bottle", "HEAD")));
    assert_eq!(sent.matches("have ").count(), 1, "{sent}");
    assert!(sent.contains(&format!("have {given}")) && !sent.contains(scene.id("user", "HEAD").as_str()));
    assert_eq!(received(&store).await, 3, "the 60 that were given are not sent again: {sent}");
}

/// A forged repository refers to an object of the user that the bottle did not receive.
#[tokio::test]
async fn a_reference_to_what_was_not_given_is_refused() {
    let scene = Scene::new();
    scene.repository("user", &[], 1);
    scene.git("", &["clone", "-q", "--bare", "user", "given"]);
    scene.git("", &["clone", "-q", "user", "bottle"]);
    let given = scene.id("user", "HEAD");
    scene.commit("user", "private\n");
    let (private, tree) = (scene.id("user", "HEAD"), scene.id("user", "HEAD^{tree}"));
    // The agent knows the id of an object, but does not have the object.
    for (forged, text) in [
        ("parent", format!("tree {}\nparent {private}\n", scene.id("bottle", "HEAD^{tree}"))),
        ("tree", format!("tree {tree}\nparent {given}\n")),
    ] {
        let commit = format!("{text}author a <a> 0 +0000\ncommitter a <a> 0 +0000\n\nx\n");
        fs::write(scene.path("commit"), commit).expect("written");
        let id = scene.git("bottle", &["hash-object", "-w", "-t", "commit", "--literally", "../commit"]);
        let forged_pack = forged_upload(&scene, &id);
        let store = scene.store(StoreKind::default());
        let given_objects = Directory::open(&scene.path("given/objects")).expect("opened");
        store.borrow(Objects::open(&given_objects, &[]).expect("objects")).expect("borrowed");
        let result = store.fetch(head(Some(&given)), forged_pack.as_slice(), tokio::io::sink()).await;
        assert!(matches!(result, Err(FetchError::Store(_))), "{forged}: {result:?}");
        store.borrow(scene.objects("user")).expect("borrowed");
        let left = store.path().join("objects/pack");
        assert_eq!(fs::read_dir(left).expect("read").count(), 0, "nothing of it is left");
    }
}

/// Returns the output of a forged program that offers one object of the bottle's repository, and sends only this
/// object.
fn forged_upload(scene: &Scene, id: &str) -> Vec<u8> {
    let mut git = Command::new("git");
    git.args(["pack-objects", "--stdout", "-q"]).current_dir(scene.path("bottle"));
    let mut git = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git");
    git.stdin.take().expect("input").write_all(format!("{id}\n").as_bytes()).expect("written");
    let pack = git.wait_with_output().expect("git").stdout;
    let mut answer = packet(&format!("{id} HEAD\0side-band-64k\n")).into_bytes();
    answer.extend_from_slice(b"0000");
    answer.extend_from_slice(packet("NAK\n").as_bytes());
    answer.extend_from_slice(format!("{:04x}\u{1}", pack.len() + 5).as_bytes());
    answer.extend_from_slice(&pack);
    answer.extend_from_slice(b"0000");
    answer
}

#[tokio::test]
async fn refuses_what_is_no_conversation_of_git() {
    let id = "1".repeat(40);
    let offer = packet(&format!("{id} HEAD\0side-band-64k\n")) + "0000";
    for (answer, error) in [
        (String::new(), "the bottle closed the connection"),
        ("\u{1b}[31mxxxx".to_owned(), "git in the bottle broke the protocol: a malformed length"),
        ("0002".to_owned(), "git in the bottle broke the protocol: a malformed length"),
        ("+00axxxxxx".to_owned(), "git in the bottle broke the protocol: a malformed length"),
        (packet("ERR no\n"), "git in the bottle failed: no"),
        (packet("hello world\n"), "git in the bottle failed: hello world"),
        (offer.clone(), "the bottle closed the connection"),
        (
            packet(&format!("{id} HEAD\0\n")) + "0000",
            "git in the bottle broke the protocol: it has no side bands",
        ),
        (offer.clone() + &packet("NAK\n") + "000b\u{3}stop!!", "git in the bottle failed: stop!!"),
        (
            offer.clone() + &packet("NAK\n") + "0009\u{1}PACK0000",
            "the bottle's pack is refused: it is incomplete",
        ),
        (offer + &packet("NAK\n") + "0000", "the bottle's pack is refused: it is incomplete"),
        (
            packet(&format!("{} HEAD\0side-band-64k\n", "1".repeat(64))) + "0000",
            "the bottle's repository has another hash function",
        ),
    ] {
        let scene = Scene::new();
        let store = scene.store(StoreKind::default());
        let result = store.fetch(head(None), answer.as_bytes(), tokio::io::sink()).await;
        assert_eq!(result.map_err(|error| error.to_string()), Err(error.to_owned()), "{answer:?}");
    }
    let empty = packet(&format!("{} capabilities^{{}}\0side-band-64k\n", "0".repeat(40))) + "0000";
    let scene = Scene::new();
    let store = scene.store(StoreKind::default());
    assert_eq!(store.fetch(head(None), empty.as_bytes(), tokio::io::sink()).await.expect("empty"), None);
}

/// Sends `packet` repeatedly after `begin`, and waits before each packet.
async fn repeat(mut to: impl AsyncWrite + Unpin, begin: &str, packet: &str, wait: Duration) {
    let mut sent = to.write_all(begin.as_bytes()).await;
    while sent.is_ok() {
        tokio::time::sleep(wait).await;
        sent = to.write_all(packet.as_bytes()).await;
    }
}

/// Packets that arrive before the idle timeout cannot extend a fetch beyond its deadline. The number of packets without
/// a part of the pack is bounded.
#[tokio::test(start_paused = true)]
async fn packets_that_come_in_time_do_not_hold_a_fetch() {
    let id = "1".repeat(40);
    let offer = packet(&format!("{id} HEAD\0side-band-64k\n")) + "0000";
    let (line, answer) = (packet(&format!("{id} refs/heads/x\n")), offer.clone() + &packet("NAK\n"));
    let (slow, fast) = (IDLE.checked_sub(Duration::from_secs(1)).expect("a time"), Duration::ZERO);
    let too_late = "git in the bottle timed out";
    for (begin, packet, wait, error) in [
        (String::new(), line.as_str(), slow, too_late),
        (offer.clone(), "0000", slow, too_late),
        (answer.clone(), "0005\u{2}", slow, too_late),
        (answer.clone(), "0005\u{1}", slow, too_late),
        (String::new(), "", IDLE * 2, too_late),
        (offer, "0000", fast, "git in the bottle broke the protocol: too many lines"),
        (answer, "0005\u{2}", fast, "git in the bottle broke the protocol: too much progress"),
    ] {
        let scene = Scene::new();
        let store = scene.store(StoreKind::default());
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        // Many packets are sent at once, so that the limit is reached soon.
        let packets = if wait == fast { packet.repeat(10_000) } else { packet.to_owned() };
        let sending = tokio::spawn(async move { repeat(theirs, &begin, &packets, wait).await });
        let started = tokio::time::Instant::now();
        let result = store.fetch(head(None), ours, tokio::io::sink()).await;
        assert_eq!(result.map_err(|error| error.to_string()), Err(error.to_owned()), "{packet:?}");
        assert!(started.elapsed() <= DEADLINE, "{packet:?}: {:?}", started.elapsed());
        sending.abort();
    }
}

#[tokio::test]
async fn fetches_from_a_shallow_repository() {
    let scene = Scene::new();
    scene.repository("from", &[], 5);
    scene.git(
        "",
        &["clone", "-q", "--depth=2", &format!("file://{}", scene.path("from").display()), "bottle"],
    );
    let store = scene.store(StoreKind::default());
    let (fetched, _) = scene.fetch(&store, "bottle", head(None)).await;
    let fetched = fetched.expect("fetched").expect("a commit");
    assert_eq!(fetched.shallow, [scene.id("bottle", "HEAD~1")]);
    let counted = store.git().expect(&["rev-list", "--count", fetched.tip.as_str()]).await.expect("git");
    assert_eq!(counted.stdout.bytes, b"2\n");
    // If a repository has the whole history, a pack for it contains only the new objects.
    store.borrow(scene.objects("from")).expect("borrowed");
    store.set_shallow([]).expect("set");
    let tips: Vec<_> = scene.opened("from").refs().all().expect("read").into_iter().collect();
    assert!(store.pack(&fetched.tip, &tips).await.expect("packed").is_none());
}

/// A pull of a branch into a repository of the user runs no program, whatever the repository's configuration says.
#[tokio::test]
async fn pulls_into_a_repository_that_names_programs() {
    let scene = Scene::new();
    scene.repository("user", &[], 3);
    scene.git("", &["clone", "-q", "user", "bottle"]);
    scene.commit("bottle", "work\n");
    let ran = scene.path("ran");
    let program = format!("sh -c 'touch {}' --", ran.display());
    let url = format!("url.ext::{program} .insteadOf");
    for (key, value) in [
        ("core.fsmonitor", program.as_str()),
        ("core.sshCommand", &program),
        ("core.alternateRefsCommand", &program),
        ("core.hooksPath", ".husky"),
        ("diff.external", &program),
        ("filter.lfs.process", &program),
        ("filter.lfs.required", "true"),
        ("credential.helper", &program),
        ("uploadpack.packObjectsHook", &program),
        ("gpg.program", &program),
        ("include.path", "/dev/zero"),
        ("remote.evil.url", "ssh://host/path"),
        ("remote.evil.promisor", "true"),
        ("protocol.ext.allow", "always"),
        (&url, "/"),
    ] {
        fs::OpenOptions::new().append(true).open(scene.path("user/.git/config")).expect("opened");
        let mut git = Command::new("git");
        git.args(["config", "--file"]).arg(scene.path("user/.git/config")).args([key, value]);
        assert!(git.status().expect("git").success(), "{key}");
    }
    let hook = scene.path("user/.git/hooks/reference-transaction");
    fs::create_dir_all(hook.parent().expect("a parent")).expect("made");
    fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", ran.display())).expect("written");
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    // Git would read these files in addition to the objects.
    fs::write(scene.path("user/.git/objects/info/http-alternates"), "http://127.0.0.1:1/\n")
        .expect("written");
    fs::write(scene.path("user/.git/objects/info/commit-graph"), "CGPH").expect("written");
    fs::write(scene.path("user/.git/objects/pack/multi-pack-index"), "MIDX").expect("written");

    let user = scene.opened("user");
    assert!(user.kind().partial);
    let store = scene.store(user.kind());
    let (fetched, _) = scene.fetch(&store, "bottle", head(None)).await;
    let tip = fetched.expect("fetched").expect("a commit").tip;
    store.borrow(user.objects(&[]).expect("objects")).expect("borrowed");
    let tips = user.refs().all().expect("read");
    let present = store.present(&tips).await.expect("git");
    assert_eq!(present.len(), tips.len());
    let mut pack = store.pack(&tip, &present).await.expect("packed").expect("objects");
    user.add_pack(&mut pack, &[]).expect("added");
    let name = branch_reference("bottle/one").expect("a name");
    user.write_branch(&name, None, &tip, LOG).expect("written");
    assert!(!ran.exists());

    fs::remove_file(hook).expect("removed");
    fs::write(scene.path("user/.git/config"), "[core]\n\tbare = false\n").expect("written");
    fs::remove_file(scene.path("user/.git/objects/info/commit-graph")).expect("removed");
    fs::remove_file(scene.path("user/.git/objects/pack/multi-pack-index")).expect("removed");
    assert_eq!(scene.id("user", "bottle/one"), tip);
    assert_eq!(scene.git("user", &["show", "bottle/one:file"]), "work");
    assert_eq!(scene.git("user", &["reflog", "show", "--format=%gs", "bottle/one"]), "pull");
    scene.git("user", &["fsck", "--full", "--strict"]);
    scene.git("user", &["gc", "-q", "--prune=now"]);
    assert_eq!(scene.git("user", &["show", "bottle/one:file"]), "work");
}

#[test]
fn opens_no_objects_that_are_links_or_pipes() {
    let scene = Scene::new();
    scene.repository("user", &[], 1);
    let objects = scene.path("user/.git/objects");
    let pipe = |path: &Path| {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::RWXU, 0).expect("a named pipe");
    };
    let opens = || scene.opened("user").objects(&[]);
    assert!(opens().is_ok());
    for name in ["pack/pack-1.idx", "pack/pack-1.pack"] {
        pipe(&objects.join(name));
        assert!(matches!(opens(), Err(RepositoryError::Objects(ObjectsError::Read(_)))), "{name}");
        fs::remove_file(objects.join(name)).expect("removed");
        symlink("/dev/zero", objects.join(name)).expect("link");
        assert!(opens().is_err(), "{name}");
        fs::remove_file(objects.join(name)).expect("removed");
    }
    // If git may read this directory, it opens a chain of multi-pack indexes.
    let chain = objects.join("pack/multi-pack-index.d");
    fs::create_dir(&chain).expect("made");
    fs::write(chain.join("multi-pack-index-chain"), "").expect("written");
    assert!(opens().is_ok());
    pipe(&chain.join("multi-pack-index-1.midx"));
    assert!(matches!(opens(), Err(RepositoryError::Objects(ObjectsError::Read(_)))), "a pipe in a directory");
    fs::remove_file(chain.join("multi-pack-index-1.midx")).expect("removed");
    fs::create_dir(chain.join("deeper")).expect("made");
    assert!(opens().is_err(), "a nested directory");
    fs::remove_dir_all(&chain).expect("removed");
    let loose = fs::read_dir(&objects).expect("read").map(|entry| entry.expect("an entry").path());
    let loose = loose.into_iter().find(|path| path.file_name().is_some_and(|name| name.len() == 2));
    let inside = loose.expect("an object").join("directory");
    fs::create_dir(&inside).expect("made");
    assert!(opens().is_err(), "a directory among loose objects");
    fs::remove_dir(&inside).expect("removed");
    assert!(opens().is_ok());
    fs::rename(objects.join("pack"), scene.path("elsewhere")).expect("moved");
    symlink(scene.path("elsewhere"), objects.join("pack")).expect("link");
    assert!(opens().is_err(), "a link to a directory");
}

/// Git in `bottle`'s own directory does not wait for a chain of multi-pack indexes, even if the chain appears after the
/// check.
#[tokio::test]
async fn no_chain_of_indexes_is_awaited() {
    let scene = Scene::new();
    scene.repository("user", &[], 1);
    scene.git("user", &["repack", "-qad"]);
    let user = scene.opened("user");
    let store = scene.store(user.kind());
    store.borrow(user.objects(&[]).expect("objects")).expect("borrowed");
    let chain = scene.path("user/.git/objects/pack/multi-pack-index.d");
    fs::create_dir(&chain).expect("made");
    let (path, kind) = (chain.join("multi-pack-index-chain"), rustix::fs::FileType::Fifo);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::RWXU, 0).expect("a named pipe");
    let tip = user.head().expect("read").expect("a commit");
    let (git, arguments) = (store.git(), ["rev-list", "--objects", tip.as_str()]);
    let listed = tokio::time::timeout(Duration::from_secs(60), git.expect(&arguments)).await;
    listed.expect("git does not wait").expect("whole");
}

/// Objects of another repository are read only if its directory is among the permitted lenders.
#[tokio::test]
async fn borrows_only_from_known_repositories() {
    let scene = Scene::new();
    scene.repository("private", &[], 2);
    scene.git("", &["clone", "-q", "--shared", "private", "user"]);
    scene.commit("user", "mine\n");
    let user = scene.opened("user");
    let lenders = user.lenders().expect("read");
    assert_eq!(lenders, [scene.path("private/.git/objects").canonicalize().expect("a path")]);
    assert!(matches!(user.objects(&[]), Err(RepositoryError::Objects(ObjectsError::Borrows { .. }))));
    let store = scene.store(user.kind());
    store.borrow(user.objects(&lenders).expect("objects")).expect("borrowed");
    let tip = user.head().expect("read").expect("a commit");
    store.git().expect(&["rev-list", "--objects", tip.as_str()]).await.expect("whole");
    fs::write(scene.path("private/.git/objects/info/alternates"), "../../../private/.git/objects\n")
        .expect("written");
    assert!(user.objects(&lenders).is_err(), "a circle");
    assert_eq!(user.lenders().expect("read").len(), 1);
}

/// A view shows the directories that were opened, even if their names later lead to other directories.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_view_does_not_follow_a_replaced_directory() {
    let scene = Scene::new();
    scene.repository("user", &[], 1);
    scene.repository("private", &[], 2);
    for name in ["user", "private"] {
        scene.git(name, &["repack", "-qad"]);
    }
    let user = scene.opened("user");
    let store = scene.store(user.kind());
    store.borrow(user.objects(&[]).expect("objects")).expect("borrowed");
    let pack = scene.path("user/.git/objects/pack");
    fs::rename(&pack, scene.path("moved")).expect("moved");
    symlink(scene.path("private/.git/objects/pack"), &pack).expect("link");
    let (own, other) = (user.head().expect("read").expect("a commit"), scene.id("private", "HEAD"));
    assert!(store.commit(own.as_str()).await.expect("git").is_some());
    assert_eq!(store.commit(other.as_str()).await.expect("git"), None);
}
