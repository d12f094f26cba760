//! What a user brings: a Dockerfile, a reference, a folder, an archive.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use bottle::backend::BackendErrorKind;
use bottle::backend::docker::images::Account;

use crate::stand::{Stand, docker, in_image};

const BASE: &str = "FROM debian:bookworm-slim";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
dev:x:1234:1234::/srv/dev:/bin/sh
locked:x:1235:1235::/home/locked:/bin/sh
rooted:x:1236:1236::/home/rooted:/bin/sh
linked:x:1237:1237::/home/linked:/bin/sh
";

#[tokio::test]
async fn whatever_user_an_image_has_the_agent_has_a_home_it_owns_and_is_not_root() {
    let Some(stand) = Stand::new("users of images") else { return };
    let base = users(&stand);
    for (instruction, who) in [
        // None, and root by name and number: the one with id 1000, made where it is missing.
        ("", "agent:1000:1000:/home/agent"),
        ("USER root", "agent:1000:1000:/home/agent"),
        ("USER 0:0", "agent:1000:1000:/home/agent"),
        // The image's own.
        ("USER dev", "dev:1234:1234:/srv/dev"),
        ("USER 1234:50", "dev:1234:50:/srv/dev"),
        ("USER 4711", "agent:4711:0:/home/agent"),
        // A home that is not there, that it may not write to, that is another's, that is a link.
        ("USER nobody", "nobody:65534:65534:/home/nobody"),
        ("USER locked", "locked:1235:1235:/home/locked"),
        ("USER rooted", "rooted:1236:1236:/home/rooted"),
        ("USER linked", "linked:1237:1237:/home/linked"),
    ] {
        let image = stand.of_dockerfile(&format!("FROM {base}\n{instruction}")).await.expect(instruction);
        let Account { name, uid, gid, home } = &image.account;
        assert_eq!(format!("{name}:{uid}:{gid}:{home}"), who, "{instruction}");
        let files = files(&image.id);
        let (owner, folder) = (format!(" {uid}/"), format!(" {}/", &home[1..]));
        let owned = |line: &str| line.starts_with("drwx") && line.contains(&owner) && line.ends_with(&folder);
        assert!(files.lines().any(owned), "{instruction}\n{files}");
    }
    docker(&["rmi", "--force", &base]);
    assert_eq!(stand.stand_ins(), "", "a container was left");
}

#[tokio::test]
async fn the_agent_of_an_image_of_roots_can_work_in_it() {
    let Some(stand) = Stand::new("an image of root's") else { return };
    let text = format!("{BASE}\nRUN useradd -u 1000 -g users -M node\nUSER root");
    let image = stand.of_dockerfile(&text).await.expect("an image");
    let said =
        in_image(&image.id, "echo $(id -un):$(id -u):$(id -g):$(cd && pwd); cd && touch it && stat -c %U it");
    assert_eq!(said, "node:1000:100:/home/node\nnode");
}

/// An image of a few users and their homes, and nothing else.
fn users(stand: &Stand) -> String {
    let name = format!("bottle-test-{}:users", stand.word());
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |path: &str, kind: tar::EntryType, mode: u32, owner: u64, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(bytes.len() as u64);
        header.set_uid(owner);
        header.set_gid(owner);
        if kind == tar::EntryType::Symlink {
            header.set_link_name("/srv").expect("a link");
        }
        archive.append_data(&mut header, path, bytes).expect("append");
    };
    add("etc/passwd", tar::EntryType::Regular, 0o644, 0, PASSWD.as_bytes());
    add("srv/dev", tar::EntryType::Directory, 0o755, 1234, b"");
    add("home/locked", tar::EntryType::Directory, 0o500, 1235, b"");
    add("home/rooted", tar::EntryType::Directory, 0o755, 0, b"");
    add("home/linked", tar::EntryType::Symlink, 0o777, 1237, b"");
    let path = stand.host.home.join("users.tar");
    std::fs::write(&path, archive.into_inner().expect("an archive")).expect("write");
    docker(&["import", &path.display().to_string(), &name]);
    name
}

/// What is in an image, as `tar` lists it.
fn files(image: &str) -> String {
    let made = docker(&["create", image, "/nothing"]);
    let list = format!("docker export {made} | tar -tvf - --numeric-owner");
    let listed = Command::new("sh").args(["-c", &list]).output().expect("tar");
    docker(&["rm", "--volumes", &made]);
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

#[tokio::test]
async fn what_an_image_would_run_by_itself_is_named_and_its_volumes_too() {
    let Some(stand) = Stand::new("entrypoints") else { return };
    let text =
        format!("{BASE}\nENTRYPOINT [\"/bin/false\"]\nHEALTHCHECK CMD true\nVOLUME /data\nENV KEY=value");
    let image = stand.of_dockerfile(&text).await.expect("an image");
    assert_eq!(image.left_out, ["ENTRYPOINT", "HEALTHCHECK"]);
    assert_eq!(image.volumes, ["/data"]);
    assert!(image.env.contains(&"KEY=value".to_owned()), "{:?}", image.env);
    assert_eq!(stand.images().ready(&image.id).await.expect("ready"), image);
    let healthcheck = docker(&["image", "inspect", "--format", "{{json .Config.Healthcheck}}", &image.id]);
    assert_eq!(healthcheck, r#"{"Test":["NONE"]}"#);
}

#[tokio::test]
async fn an_image_with_nothing_in_it_gets_a_user_and_a_home() {
    let Some(stand) = Stand::new("an image of nothing") else { return };
    let image = stand.of_dockerfile("FROM scratch").await.expect("an image");
    let files = files(&image.id);
    assert!(files.contains("drwxr-xr-x 1000/1000"), "{files}");
    assert!(files.contains("home/agent/") && files.contains("etc/passwd"), "{files}");
}

#[tokio::test]
async fn a_dockerfile_sees_no_context_and_is_built_once_until_it_changes() {
    let Some(stand) = Stand::new("a Dockerfile") else { return };
    let plan = || stand.plan_with("template: command, command: [sh], dockerfile: images/dev");
    stand.write("images/secret", "a neighbour");
    stand.write(
        "images/dev",
        &format!("{BASE}\nCOPY . /seen/\nRUN ls -A /seen > /list\nLABEL test={}", stand.word()),
    );
    let image = stand.agent(&plan()).await.expect("an image");
    assert_eq!(in_image(&image.id, "cat /list"), "Dockerfile");
    stand.heard.take();
    assert_eq!(stand.images().preview(&plan()).await.expect("asked").changed, [""; 0]);
    assert_eq!(stand.agent(&plan()).await.expect("there"), image);
    assert_eq!(stand.heard.take(), [""; 0], "an unchanged Dockerfile is built again");
    stand.write("images/dev", &format!("{BASE}\nRUN echo changed\nLABEL test={}", stand.word()));
    let changed = stand.images().preview(&plan()).await.expect("asked").changed.join("\n");
    assert!(changed.contains("\n-COPY . /seen/\n") && changed.contains("\n+RUN echo changed\n"), "{changed}");
    let other = stand.agent(&plan()).await.expect("an image");
    assert_ne!(other.id, image.id);
    for id in [image.id, other.id] {
        docker(&["rmi", "--force", &id]);
    }
}

#[tokio::test]
async fn an_image_comes_by_reference_and_out_of_folders_and_archives() {
    let Some(stand) = Stand::new("images by reference and path") else { return };
    let reference = format!("bottle-test-{}:1", stand.word());
    stand.write("small/word", &stand.word());
    stand.write("small/etc/passwd", PASSWD);
    let small = stand.host.home.join("small").display().to_string();
    let import = format!("tar -C {small} -c . | docker import - {reference} > /dev/null");
    assert!(Command::new("sh").args(["-c", &import]).status().expect("docker import").success());
    let file = |name: &str| stand.host.home.join(name).display().to_string();
    docker(&["save", "--output", &file("saved.tar"), &reference]);
    let container = docker(&["create", &reference, "/nothing"]);
    docker(&["export", "--output", &file("exported.tar"), &container]);
    docker(&["rm", &container]);
    for (archive, folder) in [("exported.tar", "folder"), ("saved.tar", "saved")] {
        std::fs::create_dir(stand.host.home.join(folder)).expect("folder");
        let unpacked = Command::new("tar")
            .args(["--directory", &file(folder), "--numeric-owner", "-xpf", &file(archive)])
            .status()
            .expect("tar");
        assert!(unpacked.success(), "{archive}");
    }
    let mut ids = Vec::new();
    for source in [reference.as_str(), "./saved.tar", "./exported.tar", "./folder", "./saved"] {
        let plan = stand.plan_with(&format!("template: command, command: [sh], image: {source}"));
        let image = stand.agent(&plan).await.expect(source);
        let files = files(&image.id);
        let has = |name: &str| files.lines().any(|line| line.ends_with(name));
        assert!(has(" word") && has(" home/agent/"), "{source}\n{files}");
        stand.heard.take();
        assert_eq!(stand.agent(&plan).await.expect(source), image);
        assert_eq!(stand.heard.take(), [""; 0], "{source} is read again");
        ids.push(image.id);
    }
    docker(&["rmi", &reference]);
    for id in ids {
        docker(&["rmi", "--force", &id]);
    }
}

#[tokio::test]
async fn an_image_that_cannot_be_a_bottle_is_named_with_the_reason() {
    let Some(stand) = Stand::new("images that do not fit") else { return };
    let plan = |image: &str| stand.plan_with(&format!("template: command, command: [sh], image: {image}"));
    // One of another processor.
    saved_for(&stand.host.home.join("foreign.tar"), "s390x");
    let error = stand.agent(&plan("./foreign.tar")).await.expect_err("another processor");
    assert_eq!(error.kind, BackendErrorKind::Unsupported);
    assert!(
        error.message.starts_with("the image ./foreign.tar is for s390x, and this engine runs"),
        "{error}"
    );
    // None at all.
    let error = stand.agent(&plan("bottle.invalid/nothing:1")).await.expect_err("not there");
    assert!(error.message.starts_with("the image bottle.invalid/nothing:1 is not on this engine"), "{error}");
    let error = stand.agent(&plan("./nothing.tar")).await.expect_err("not there");
    assert!(error.message.starts_with("the image ./nothing.tar cannot be read"), "{error}");
    // A user nobody knows.
    let error = stand.of_dockerfile(&format!("{BASE}\nUSER somebody")).await.expect_err("no user");
    assert!(error.message.contains("has `USER somebody`, and no such user"), "{error}");
    // A file that its owner may not read, in a folder.
    stand.write("folder/etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    let unread = stand.host.home.join("folder/etc/passwd");
    std::fs::set_permissions(&unread, std::fs::Permissions::from_mode(0o000)).expect("mode");
    if std::fs::read(&unread).is_err() {
        let error = stand.agent(&plan("./folder")).await.expect_err("unreadable");
        assert!(error.message.contains("cannot read the image ./folder"), "{error}");
    }
    assert_eq!(stand.stand_ins(), "", "a container was left");
}

/// An image of one file as `docker save` writes it, for this architecture.
fn saved_for(path: &Path, architecture: &str) {
    let archive = |files: &[(&str, &[u8])]| {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, *bytes).expect("append");
        }
        archive.into_inner().expect("an archive")
    };
    let layer = archive(&[("hello", b"hello")]);
    let digest = format!("sha256:{}", hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&layer)));
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [digest]},
    });
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]);
    let files = [
        ("config.json", config.to_string().into_bytes()),
        ("layer.tar", layer),
        ("manifest.json", manifest.to_string().into_bytes()),
    ];
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    std::fs::write(path, archive(&files)).expect("write");
}
