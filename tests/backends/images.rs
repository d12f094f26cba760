//! Bottles of the Linux backend that work in an image: what they change is theirs, and in their snapshots.

use std::path::{Path, PathBuf};

use bottle::backend::{Origin, Snapshot};
use bottle_test_support::skip;

use crate::stand::{Bottle, Stand, run};

/// Where the Linux backend runs, its bottles in an image.
async fn stand() -> Option<Stand> {
    let stand = Stand::new("linux", &[]);
    let check = stand.backend.check().await;
    if !check.usable {
        skip::aloud("images", &format!("the linux backend is not usable here: {:?}", check.findings));
        return None;
    }
    Some(Stand::in_image().await)
}

async fn shell(bottle: &Bottle<'_>, script: &str) -> String {
    let channel = bottle.connect().await;
    run(&channel, &["/bin/sh", "-c", script]).await.expect("ran").0
}

/// Where a snapshot's files of the system are.
fn stored(stand: &Stand, snapshot: &Snapshot) -> PathBuf {
    let own = stand.host.home.join("snapshots").join(snapshot.slug.as_str());
    own.join(&snapshot.reference).join("upper")
}

/// Changes of every kind that a layer over an image can have.
const CHANGE: &str = "echo mine >/usr/bin/new; rm /usr/bin/seq; rm -r /etc/ssl && mkdir -p /etc/ssl/own; \
    echo changed >/etc/nsswitch.conf; mv /usr/bin/uniq /opt/moved; mkdir /top; echo t >/top/file; \
    cd /opt; echo 1 >one; ln one two; ln -s /etc/passwd link; ln -s nowhere dangling; mkfifo pipe; \
    touch -d 2001-02-03 one; truncate -s 1G sparse; echo end >>sparse; echo x >closed; chmod 0 closed; \
    mkdir shut; echo f >shut/file; chmod 500 shut; chmod 640 moved; chown 0:0 one; \
    python3 -c 'import os; os.setxattr(\"one\", \"user.note\", b\"kept\")'; \
    python3 -c 'import os; os.setxattr(\"one\", \"user.overlay.opaque\", b\"y\")' 2>/dev/null; \
    python3 -c 'import os; os.setxattr(\"/opt/shut\", \"user.overlay.redirect\", b\"/etc\")' 2>/dev/null; true";

/// Says all of it.
const DESCRIBE: &str = "cat /usr/bin/new; ls /usr/bin/seq 2>&1; ls -A /etc/ssl /top; cat /etc/nsswitch.conf; \
    ls -d /usr/bin/uniq 2>&1; cd /opt; for f in $(ls -A | sort); do stat -c '%n %F %a %s %Y %N %u' $f; done; \
    [ one -ef two ] && echo linked; cat closed 2>&1; cat shut/file; printf 'a\\na\\n' >/tmp/in; \
    python3 -c 'import os; print(os.getxattr(\"one\", \"user.note\"))'; \
    head -c 5 /etc/passwd; echo; [ $(stat -c %b sparse) -lt 1000 ] && echo sparse";

#[tokio::test(flavor = "multi_thread")]
async fn the_system_is_the_bottles_own_and_the_image_stays_as_it_is() {
    let Some(stand) = stand().await else { return };
    let bottle = stand.bottle("changes").await;
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
    // Another bottle of it, at the same time.
    let other = stand.bottle("untouched").await;
    let output = other.shell("ls -d /usr/bin/new /top 2>/dev/null; ls /usr/bin/seq /etc/ssl").await;
    assert_eq!(output, "/usr/bin/seq\n\n/etc/ssl:\ncert.pem\ncerts\n");
    assert_eq!(stand.backend.unused().await.expect("listed"), [], "two bottles stand on it");
    bottle.remove().await;
    other.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_holds_what_changed_and_all_of_that() {
    let Some(stand) = stand().await else { return };
    let bottle = stand.bottle("changed").await;
    bottle.shell(CHANGE).await;
    let described = shell(&bottle, DESCRIBE).await;
    assert!(described.contains("linked\n") && described.contains("b'kept'"), "{described}");
    let one = bottle.freeze(None).await;
    // It goes on meanwhile, and the next one shares what did not change.
    let two = bottle.freeze(Some(&one)).await;
    assert!(stored(&stand, &two).join("opt/one").is_file());
    assert!(!stored(&stand, &two).join("usr/bin/git").exists(), "what is the image's is not stored again");
    assert!(one.bytes.expect("known") < (1 << 30) + (4 << 20), "{one:?}");
    bottle.remove().await;
    for snapshot in [&one, &two] {
        let again = stand.bottle_from("changed", Origin::Snapshot(snapshot.clone())).await;
        assert_eq!(again.shell(DESCRIBE).await, described);
        // What was removed comes back when it is made anew, and goes once more.
        let channel = again.connect().await;
        let script = "echo again >/usr/bin/seq; mkdir -p /etc/ssl/certs; ls -A /etc/ssl/certs | wc -l";
        assert_eq!(run(&channel, &["/bin/sh", "-c", script]).await.expect("ran").0, "0\n");
        again.remove().await;
    }
    // The image is needed as long as a snapshot stands on it.
    assert_eq!(stand.backend.unused().await.expect("listed"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_bottle_goes_on_with_its_system() {
    let Some(stand) = stand().await else { return };
    let bottle = stand.bottle("goes-on").await;
    bottle
        .shell("echo mine >/usr/bin/new; rm /usr/bin/seq; rm /etc/hosts; ln -s /etc/passwd /etc/hosts")
        .await;
    bottle.stop().await;
    let again = stand.bottle_from("goes-on", Origin::Kept).await;
    // What belongs to a launch is made anew, whatever is in its place.
    let output = again
        .shell("cat /usr/bin/new; ls /usr/bin/seq 2>&1 | wc -l; head -c 20 /etc/hosts; wc -l </etc/passwd")
        .await;
    assert_eq!(output, "mine\n1\n127.0.0.1 localhost 2\n");
    again.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crafted_snapshot_harms_nothing() {
    let Some(stand) = stand().await else { return };
    let outside = tempfile::tempdir().expect("folder");
    std::fs::write(outside.path().join("hosts"), "the host's").expect("written");
    let bottle = stand.bottle("crafted").await;
    bottle.shell("mkdir -p /opt/d; echo x >/opt/d/x; echo y >/usr/bin/new").await;
    let snapshot = bottle.freeze(None).await;
    bottle.remove().await;
    let upper = stored(&stand, &snapshot);
    // A folder that says it is another one, set-id programs, links and what stands for removed files.
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
    let again = stand.bottle_from("crafted", Origin::Snapshot(snapshot.clone())).await;
    let output = again.shell("cat /opt/d/x /usr/bin/new; stat -c %a /usr/bin/new; ls /opt/out/ /opt/null 2>&1 | grep -c 'No such'; ls /opt/d").await;
    assert_eq!(output, "x\ny\n755\n2\nx\n");
    again.remove().await;

    // Where a bottle puts its own, nothing leads elsewhere.
    std::fs::remove_dir_all(upper.join("etc")).expect("removed");
    std::os::unix::fs::symlink(outside.path(), upper.join("etc")).expect("link");
    let mut bottle = stand.planned("crafted");
    bottle.origin = Origin::Snapshot(snapshot);
    let prepared = stand.prepared().await.expect("prepared");
    stand.backend.make_network(&bottle.site()).await.expect("network");
    let error = stand.backend.start_guest(&bottle.site(), &prepared).await.expect_err("a link");
    assert!(error.message.contains("/etc"), "{error}");
    assert_eq!(std::fs::read_to_string(outside.path().join("hosts")).expect("read"), "the host's");
    bottle.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bottle_whose_image_is_gone_says_so() {
    let Some(stand) = stand().await else { return };
    let bottle = stand.bottle("stranded").await;
    bottle.stop().await;
    // Another home's images: of this one's none is there.
    let images = stand.host.home.join("images");
    std::fs::remove_file(&images).expect("unlinked");
    let mut again = stand.planned("stranded");
    again.origin = Origin::Kept;
    let prepared = stand.prepared().await.expect("prepared");
    stand.backend.make_network(&again.site()).await.expect("network");
    let error = stand.backend.start_guest(&again.site(), &prepared).await.expect_err("it is gone");
    assert!(error.message.contains("the image that the files of stranded stand on is gone"), "{error}");
    again.remove().await;
}
