//! Tests bottles of the linux backend on an image. Other bottles do not see a bottle's changes. The bottle's snapshots
//! contain the changes.

use std::path::{Path, PathBuf};

use bottle_backend::{Origin, Snapshot};
use bottle_test_support::skip;

use crate::fixture::{Bottle, Fixture, run};

/// The linux backend with bottles on an image, if it is usable on this machine.
async fn fixture() -> Option<Fixture> {
    let fixture = Fixture::new("linux", &[]);
    let check = fixture.backend.check().await;
    if !check.usable {
        skip::aloud("images", &format!("the linux backend is not usable here: {:?}", check.findings));
        return None;
    }
    Some(Fixture::in_image("linux").await)
}

async fn shell(bottle: &Bottle<'_>, script: &str) -> String {
    bottle.once(&["/bin/sh", "-c", script]).await.expect("ran").0
}

/// The directory of a snapshot's system files.
fn stored(fixture: &Fixture, snapshot: &Snapshot) -> PathBuf {
    let own = fixture.host.home.join("snapshots").join(snapshot.slug.as_str());
    own.join(&snapshot.reference).join("upper")
}

/// A script that makes every kind of change that an upper layer can contain.
const CHANGE: &str = "echo mine >/usr/bin/new; rm /usr/bin/seq; rm -r /etc/ssl && mkdir -p /etc/ssl/own; \
    echo changed >/etc/nsswitch.conf; mv /usr/bin/uniq /opt/moved; mkdir /top; echo t >/top/file; \
    cd /opt; echo 1 >one; ln one two; ln -s /etc/passwd link; ln -s nowhere dangling; mkfifo pipe; \
    touch -d 2001-02-03 one; truncate -s 1G sparse; echo end >>sparse; echo x >closed; chmod 0 closed; \
    mkdir shut; echo f >shut/file; chmod 500 shut; chmod 640 moved; chown 0:0 one; \
    python3 -c 'import os; os.setxattr(\"one\", \"user.note\", b\"kept\")'; \
    python3 -c 'import os; os.setxattr(\"one\", \"user.overlay.opaque\", b\"y\")' 2>/dev/null; \
    python3 -c 'import os; os.setxattr(\"/opt/shut\", \"user.overlay.redirect\", b\"/etc\")' 2>/dev/null; true";

/// A script that prints the results of the changes of [`CHANGE`].
const DESCRIBE: &str = "cat /usr/bin/new; ls /usr/bin/seq 2>&1; ls -A /etc/ssl /top; cat /etc/nsswitch.conf; \
    ls -d /usr/bin/uniq 2>&1; cd /opt; for f in $(ls -A | sort); do stat -c '%n %F %a %s %Y %N %u' $f; done; \
    [ one -ef two ] && echo linked; cat closed 2>&1; cat shut/file; printf 'a\\na\\n' >/tmp/in; \
    python3 -c 'import os; print(os.getxattr(\"one\", \"user.note\"))'; \
    head -c 5 /etc/passwd; echo; [ $(stat -c %b sparse) -lt 1000 ] && echo sparse";

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_changes_its_system_and_not_the_image() {
    let Some(fixture) = fixture().await else { return };
    let bottle = fixture.bottle("changes").await;
    let script = "for f in / /etc /usr /usr/bin /bin /lib /opt /home; do touch $f/f || echo cannot $f; done; \
        for f in /dev /proc /sys /run/bottle/proxy; do touch $f/f 2>/dev/null && echo wrote $f; done; \
        mount | grep -v ' /\\(dev\\|proc\\|sys\\|run\\|tmp\\|workspace\\)' | cut -d' ' -f 3; \
        chown 33:33 /opt && stat -c '%u %U' /opt; id -u; cp /bin/cat /opt/cat && chmod 4755 /opt/cat && \
        /opt/cat /proc/self/status | grep -E '^(Uid|CapEff|NoNewPrivs)'; \
        mknod /opt/d c 0 0 2>/dev/null; mknod /opt/n c 1 3 2>/dev/null; ls /opt/d /opt/n 2>&1 | grep -c 'No such'";
    let output = bottle.shell(script).await;
    let expected =
        "/\n1000 agent\n1000\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n2\n";
    assert_eq!(output, expected);
    shell(&bottle, CHANGE).await;
    // Another bottle runs on the same image at the same time.
    let other = fixture.bottle("untouched").await;
    let output = other.shell("ls -d /usr/bin/new /top 2>/dev/null; ls /usr/bin/seq /etc/ssl").await;
    assert_eq!(output, "/usr/bin/seq\n\n/etc/ssl:\ncert.pem\ncerts\n");
    assert_eq!(fixture.backend.unused().await.expect("listed"), [], "two bottles stand on it");
    bottle.remove().await;
    other.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_contains_all_changes_and_only_changes() {
    let Some(fixture) = fixture().await else { return };
    let bottle = fixture.bottle("changed").await;
    bottle.shell(CHANGE).await;
    let described = shell(&bottle, DESCRIBE).await;
    assert!(described.contains("linked\n") && described.contains("b'kept'"), "{described}");
    let one = bottle.make_snapshot(None).await;
    // The bottle keeps running, and the next snapshot shares unchanged files with the previous one.
    let two = bottle.make_snapshot(Some(&one)).await;
    assert!(stored(&fixture, &two).join("opt/one").is_file());
    assert!(!stored(&fixture, &two).join("usr/bin/git").exists(), "what is the image's is not stored again");
    assert!(one.bytes.expect("known") < (1 << 30) + (4 << 20), "{one:?}");
    bottle.remove().await;
    for snapshot in [&one, &two] {
        let again = fixture.bottle_from("changed", Origin::Snapshot(snapshot.clone())).await;
        assert_eq!(again.shell(DESCRIBE).await, described);
        // A file that was removed can be created and removed again.
        let channel = again.connect().await;
        let script = "echo again >/usr/bin/seq; mkdir -p /etc/ssl/certs; ls -A /etc/ssl/certs | wc -l";
        assert_eq!(run(&channel, &["/bin/sh", "-c", script]).await.expect("ran").0, "0\n");
        again.remove().await;
    }
    // An image is in use as long as a snapshot is based on it.
    assert_eq!(fixture.backend.unused().await.expect("listed"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_bottle_keeps_its_changed_system() {
    let Some(fixture) = fixture().await else { return };
    let bottle = fixture.bottle("goes-on").await;
    bottle
        .shell("echo mine >/usr/bin/new; rm /usr/bin/seq; rm /etc/hosts; ln -s /etc/passwd /etc/hosts")
        .await;
    bottle.stop().await;
    let again = fixture.bottle_from("goes-on", Origin::Kept).await;
    // The files that a launch provides are recreated, even if the agent replaced them.
    let output = again
        .shell("cat /usr/bin/new; ls /usr/bin/seq 2>&1 | wc -l; head -c 20 /etc/hosts; wc -l </etc/passwd")
        .await;
    assert_eq!(output, "mine\n1\n127.0.0.1 localhost 2\n");
    again.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crafted_snapshot_is_harmless() {
    let Some(fixture) = fixture().await else { return };
    let outside = tempfile::tempdir().expect("directory");
    std::fs::write(outside.path().join("hosts"), "the host's").expect("written");
    let bottle = fixture.bottle("crafted").await;
    bottle.shell("mkdir -p /opt/d; echo x >/opt/d/x; echo y >/usr/bin/new").await;
    let snapshot = bottle.make_snapshot(None).await;
    bottle.remove().await;
    let upper = stored(&fixture, &snapshot);
    // The snapshot gets overlay attributes that redirect a directory and a file, a link to the outside, a set-id
    // program and, if root runs the test, a device.
    let set = |path: &Path, name: &str, value: &[u8]| {
        let path = upper.join(path);
        rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty()).expect("set");
    };
    set(Path::new("opt/d"), "user.overlay.redirect", b"/../../../etc");
    set(Path::new("opt/d/x"), "user.overlay.metacopy", b"");
    set(Path::new("usr/bin/new"), "user.overlay.redirect", b"/etc/passwd");
    std::os::unix::fs::symlink(outside.path(), upper.join("opt/out")).expect("link");
    let set_id = std::os::unix::fs::PermissionsExt::from_mode(0o6755);
    std::fs::set_permissions(upper.join("usr/bin/new"), set_id).expect("mode");
    let device = rustix::fs::mknodat(
        rustix::fs::CWD,
        upper.join("opt/null"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 3),
    );
    assert!(device.is_ok() || !rustix::process::getuid().is_root(), "{device:?}");
    let again = fixture.bottle_from("crafted", Origin::Snapshot(snapshot.clone())).await;
    let output = again.shell("cat /opt/d/x /usr/bin/new; stat -c %a /usr/bin/new; ls /opt/out/ /opt/null 2>&1 | grep -c 'No such'; ls /opt/d").await;
    assert_eq!(output, "x\ny\n755\n2\nx\n");
    again.remove().await;

    // Links that replace a bottle's mount points are not followed.
    std::fs::remove_dir_all(upper.join("etc")).expect("removed");
    std::os::unix::fs::symlink(outside.path(), upper.join("etc")).expect("link");
    let mut bottle = fixture.planned("crafted");
    bottle.origin = Origin::Snapshot(snapshot);
    let prepared = fixture.prepared().await.expect("prepared");
    fixture.backend.make_network(&bottle.launch()).await.expect("network");
    let error = fixture.backend.start_guest(&bottle.launch(), &prepared).await.expect_err("a link");
    assert!(error.one_line().contains("/etc"), "{error}");
    assert_eq!(std::fs::read_to_string(outside.path().join("hosts")).expect("read"), "the host's");
    bottle.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_a_missing_image_of_a_snapshot() {
    let Some(fixture) = fixture().await else { return };
    let bottle = fixture.bottle("stranded").await;
    bottle.stop().await;
    // The bottle's kept files are used after the home's images were removed.
    let images = fixture.host.home.join("images");
    std::fs::remove_file(&images).expect("unlinked");
    let mut again = fixture.planned("stranded");
    again.origin = Origin::Kept;
    let prepared = fixture.prepared().await.expect("prepared");
    fixture.backend.make_network(&again.launch()).await.expect("network");
    let error = fixture.backend.start_guest(&again.launch(), &prepared).await.expect_err("it is gone");
    assert!(error.one_line().contains("the image that they are based on was removed"), "{error}");
    again.remove().await;
}
