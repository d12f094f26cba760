//! Tests user-provided images: a Dockerfile, a reference, a directory, an archive.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use bottle_backend::BackendErrorKind;
use bottle_containers::docker::images::Account;

use crate::fixture::{Fixture, docker, in_image};

const BASE: &str = "FROM debian:bookworm-slim";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
dev:x:1234:1234::/srv/dev:/bin/sh
locked:x:1235:1235::/home/locked:/bin/sh
rooted:x:1236:1236::/home/rooted:/bin/sh
linked:x:1237:1237::/home/linked:/bin/sh
";

#[tokio::test]
async fn the_agent_is_never_root_and_owns_its_home() {
    let Some(fixture) = Fixture::new("users of images") else { return };
    let base = users(&fixture);
    for (instruction, who) in [
        // If the image sets no user, or root by name or number, the agent is the user with id 1000, who is
        // created if missing.
        ("", "agent:1000:1000:/home/agent"),
        ("USER root", "agent:1000:1000:/home/agent"),
        ("USER 0:0", "agent:1000:1000:/home/agent"),
        // Otherwise, the agent is the user that the image sets.
        ("USER dev", "dev:1234:1234:/srv/dev"),
        ("USER 1234:50", "dev:1234:50:/srv/dev"),
        ("USER 4711", "agent:4711:0:/home/agent"),
        // The user's home directory is missing, not writable, owned by another user, or a link.
        ("USER nobody", "nobody:65534:65534:/home/nobody"),
        ("USER locked", "locked:1235:1235:/home/locked"),
        ("USER rooted", "rooted:1236:1236:/home/rooted"),
        ("USER linked", "linked:1237:1237:/home/linked"),
    ] {
        let image = fixture.of_dockerfile(&format!("FROM {base}\n{instruction}")).await.expect(instruction);
        let Account { name, uid, gid, home } = &image.account;
        assert_eq!(format!("{name}:{uid}:{gid}:{home}"), who, "{instruction}");
        let files = files(&image.id);
        let (owner, directory) = (format!(" {uid}/"), format!(" {}/", &home[1..]));
        let owned =
            |line: &str| line.starts_with("drwx") && line.contains(&owner) && line.ends_with(&directory);
        assert!(files.lines().any(owned), "{instruction}\n{files}");
    }
    docker(&["rmi", "--force", &base]);
    assert_eq!(fixture.stand_ins(), "", "a container was left");
}

#[tokio::test]
async fn the_agent_can_work_in_an_image_whose_user_is_root() {
    let Some(fixture) = Fixture::new("an image of root's") else { return };
    let text = format!("{BASE}\nRUN useradd -u 1000 -g users -M node\nUSER root");
    let image = fixture.of_dockerfile(&text).await.expect("an image");
    let said =
        in_image(&image.id, "echo $(id -un):$(id -u):$(id -g):$(cd && pwd); cd && touch it && stat -c %U it");
    assert_eq!(said, "node:1000:100:/home/node\nnode");
}

/// Creates an image that contains only a few users and their home directories. Returns its name.
fn users(fixture: &Fixture) -> String {
    let name = format!("bottle-test-{}:users", fixture.word());
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
    let path = fixture.host.home.join("users.tar");
    std::fs::write(&path, archive.into_inner().expect("an archive")).expect("write");
    docker(&["import", &path.display().to_string(), &name]);
    name
}

/// Lists the files of an image, as `tar` prints them.
fn files(image: &str) -> String {
    let made = docker(&["create", image, "/nothing"]);
    let list = format!("docker export {made} | tar -tvf - --numeric-owner");
    let listed = Command::new("sh").args(["-c", &list]).output().expect("tar");
    docker(&["rm", "--volumes", &made]);
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

#[tokio::test]
async fn notes_name_image_commands_and_volumes() {
    let Some(fixture) = Fixture::new("entrypoints") else { return };
    let text =
        format!("{BASE}\nENTRYPOINT [\"/bin/false\"]\nHEALTHCHECK CMD true\nVOLUME /data\nENV KEY=value");
    let image = fixture.of_dockerfile(&text).await.expect("an image");
    assert_eq!(image.left_out, ["ENTRYPOINT", "HEALTHCHECK"]);
    assert_eq!(image.volumes, ["/data"]);
    assert!(image.env.contains(&"KEY=value".to_owned()), "{:?}", image.env);
    assert_eq!(fixture.images().ready(&image.id).await.expect("ready"), image);
    let healthcheck = docker(&["image", "inspect", "--format", "{{json .Config.Healthcheck}}", &image.id]);
    assert_eq!(healthcheck, r#"{"Test":["NONE"]}"#);
}

#[tokio::test]
async fn an_empty_image_gets_a_user_and_a_home() {
    let Some(fixture) = Fixture::new("an image of nothing") else { return };
    let image = fixture.of_dockerfile("FROM scratch").await.expect("an image");
    let files = files(&image.id);
    assert!(files.contains("drwxr-xr-x 1000/1000"), "{files}");
    assert!(files.contains("home/agent/") && files.contains("etc/passwd"), "{files}");
}

#[tokio::test]
async fn a_dockerfile_is_rebuilt_only_when_changed_and_the_change_is_shown() {
    let Some(fixture) = Fixture::new("a Dockerfile") else { return };
    let plan = || fixture.plan_with("template: command, command: [sh], dockerfile: images/dev");
    fixture.write("images/dev", &format!("{BASE}\nRUN echo first\nLABEL test={}", fixture.word()));
    let image = fixture.agent(&plan()).await.expect("an image");
    fixture.reports.take();
    assert_eq!(fixture.images().preview(&plan()).await.expect("asked").changed, [""; 0]);
    assert_eq!(fixture.agent(&plan()).await.expect("there"), image);
    assert_eq!(fixture.reports.take(), [""; 0], "an unchanged Dockerfile is built again");
    fixture.write("images/dev", &format!("{BASE}\nRUN echo changed\nLABEL test={}", fixture.word()));
    let changed = fixture.images().preview(&plan()).await.expect("asked").changed.join("\n");
    assert!(
        changed.contains("\n-RUN echo first\n") && changed.contains("\n+RUN echo changed\n"),
        "{changed}"
    );
    let other = fixture.agent(&plan()).await.expect("an image");
    assert_ne!(other.id, image.id);
    for id in [image.id, other.id] {
        docker(&["rmi", "--force", &id]);
    }
}

#[tokio::test]
async fn images_come_from_references_directories_and_archives() {
    let Some(fixture) = Fixture::new("images by reference and path") else { return };
    let reference = format!("bottle-test-{}:1", fixture.word());
    fixture.write("small/word", &fixture.word());
    fixture.write("small/etc/passwd", PASSWD);
    let small = fixture.host.home.join("small").display().to_string();
    let import = format!("tar -C {small} -c . | docker import - {reference} > /dev/null");
    assert!(Command::new("sh").args(["-c", &import]).status().expect("docker import").success());
    let file = |name: &str| fixture.host.home.join(name).display().to_string();
    docker(&["save", "--output", &file("saved.tar"), &reference]);
    let container = docker(&["create", &reference, "/nothing"]);
    docker(&["export", "--output", &file("exported.tar"), &container]);
    docker(&["rm", &container]);
    for (archive, directory) in [("exported.tar", "directory"), ("saved.tar", "saved")] {
        std::fs::create_dir(fixture.host.home.join(directory)).expect("directory");
        let unpacked = Command::new("tar")
            .args(["--directory", &file(directory), "--numeric-owner", "-xpf", &file(archive)])
            .status()
            .expect("tar");
        assert!(unpacked.success(), "{archive}");
    }
    let mut ids = Vec::new();
    for source in [reference.as_str(), "./saved.tar", "./exported.tar", "./directory", "./saved"] {
        let plan = fixture.plan_with(&format!("template: command, command: [sh], image: {source}"));
        let image = fixture.agent(&plan).await.expect(source);
        let files = files(&image.id);
        let has = |name: &str| files.lines().any(|line| line.ends_with(name));
        assert!(has(" word") && has(" home/agent/"), "{source}\n{files}");
        fixture.reports.take();
        assert_eq!(fixture.agent(&plan).await.expect(source), image);
        assert_eq!(fixture.reports.take(), [""; 0], "{source} is read again");
        ids.push(image.id);
    }
    docker(&["rmi", &reference]);
    for id in ids {
        docker(&["rmi", "--force", &id]);
    }
}

#[tokio::test]
async fn an_unusable_image_is_reported_with_the_reason() {
    let Some(fixture) = Fixture::new("images that do not fit") else { return };
    let plan = |image: &str| fixture.plan_with(&format!("template: command, command: [sh], image: {image}"));
    // An image for another processor architecture.
    saved_for(&fixture.host.home.join("foreign.tar"), "s390x");
    let error = fixture.agent(&plan("./foreign.tar")).await.expect_err("another processor");
    assert_eq!(error.kind, BackendErrorKind::Unsupported);
    assert!(
        error.one_line().starts_with("the image ./foreign.tar is for s390x, not for this engine ("),
        "{error}"
    );
    // A reference that the engine does not have, and an archive that does not exist.
    let error = fixture.agent(&plan("bottle.invalid/nothing:1")).await.expect_err("not there");
    assert!(
        error.one_line().starts_with("the image bottle.invalid/nothing:1 is not on this engine"),
        "{error}"
    );
    let error = fixture.agent(&plan("./nothing.tar")).await.expect_err("not there");
    assert!(error.one_line().starts_with("the image ./nothing.tar cannot be read"), "{error}");
    // A user that does not exist in the image.
    let error = fixture.of_dockerfile(&format!("{BASE}\nUSER somebody")).await.expect_err("no user");
    assert!(error.one_line().contains("has `USER somebody`, but no such user"), "{error}");
    // A file in the directory that `bottle` cannot read.
    fixture.write("directory/etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    let unread = fixture.host.home.join("directory/etc/passwd");
    std::fs::set_permissions(&unread, std::fs::Permissions::from_mode(0o000)).expect("mode");
    if std::fs::read(&unread).is_err() {
        let error = fixture.agent(&plan("./directory")).await.expect_err("unreadable");
        assert!(error.one_line().contains("cannot read the image ./directory"), "{error}");
    }
    assert_eq!(fixture.stand_ins(), "", "a container was left");
}

/// Writes an image that contains one file, in the format of `docker save` and for this architecture.
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

#[tokio::test]
async fn an_agent_can_install_programs_and_write_temporary_files_in_every_image() {
    let Some(fixture) = Fixture::new("an agent's directories") else { return };
    let text = format!(
        "{BASE}\nRUN mv /etc/passwd /etc/users && ln -s users /etc/passwd && mkdir -p /usr/local/lib/a/b /opt/tool \\\n \
         && rm -rf /tmp && mkdir -m 755 /tmp && useradd --uid 4711 --no-create-home other; true"
    );
    let image = fixture.of_dockerfile(&text).await.expect("an image");
    let script = "id -un; grep -c ^root: /etc/passwd; stat -c %a:%U /tmp; touch /tmp/x /usr/local/bin/x \
                  /usr/local/lib/a/b/x /opt/x /opt/tool/x && mkdir /usr/local/new /opt/new && echo written; \
                  touch /usr/bin/x /etc/x 2> /dev/null || echo refused";
    assert_eq!(in_image(&image.id, script), "agent\n1\n1777:root\nwritten\nrefused");
    assert!(fixture.stand_ins().is_empty(), "a container was left");
}
