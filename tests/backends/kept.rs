//! Tests what only container engines do with the files of a kept bottle: volumes, images and limits.

use bottle_backend::{Access, BackendError, LAYERS, NewSnapshot, Origin, Prepared, ProgressSink, Resource};
use bottle_plan::Resources;
use bottle_policy::names::WORKSPACE;
use bottle_test_support::engine;

use crate::fixture::{Bottle, Fixture, docker, read, run, write};

fn said(arguments: &[&str]) -> String {
    engine::docker(arguments).unwrap_or_else(|| panic!("docker {arguments:?} failed"))
}

/// An image that is removed when the value is dropped.
struct Image(String);

impl Image {
    /// Creates an image that contains little more than a shell, with further instructions.
    async fn new(fixture: &Fixture, name: &str, instructions: &str) -> Self {
        let inside = fixture.prepared().await.expect("prepared").inside.expect("an image");
        let name = format!("bottle-test-{name}-{}-{}", std::process::id(), fixture.host.home_hash());
        let directory = tempfile::tempdir().expect("directory");
        let script = format!(
            "cd {directory} && mkdir -p .{WORKSPACE} .{home} bin tmp && \
             for file in $(ldd /bin/sh /bin/cat | grep -o '/[^ ):]*' | sort -u); do \
             mkdir -p .${{file%/*}} && cp -L $file .$file; done && \
             tar --numeric-owner --owner={uid} --group={gid} -c . | docker import - {name}-base >/dev/null && \
             docker build --quiet --tag {name} - <<'END'\nFROM {name}-base\n{instructions}\nEND\n\
             docker rmi {name}-base",
            directory = directory.path().display(),
            home = inside.home,
            uid = inside.uid,
            gid = inside.gid,
        );
        let built = std::process::Command::new("sh").args(["-ec", &script]).output().expect("sh");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self(name)
    }

    /// Starts a bottle in this image.
    async fn bottle<'a>(&self, fixture: &'a Fixture, slug: &str, origin: Origin) -> Bottle<'a> {
        let mut bottle = fixture.planned(slug);
        let mut prepared: Prepared = fixture.prepared().await.expect("prepared");
        prepared.inside.as_mut().expect("an image").image = self.0.clone();
        (bottle.prepared, bottle.origin) = (prepared, origin);
        bottle.begin().await;
        bottle
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = engine::docker(&["rmi", "--force", &self.0]);
    }
}

fn layers_of(all: &[Resource]) -> String {
    let layers: Vec<&Resource> = all.iter().filter(|resource| resource.kind == LAYERS).collect();
    assert_eq!(layers.len(), 1, "{all:?}");
    layers[0].id.clone()
}

/// The names of the anonymous volumes that a container has.
fn volumes_of(container: &str) -> Vec<String> {
    let format = "{{range .Mounts}}{{if eq .Type \"volume\"}}{{.Name}}\n{{end}}{{end}}";
    let names = said(&["inspect", "--format", format, container]);
    names.lines().filter(|name| name.len() == 64).map(str::to_owned).collect()
}

fn image_layers(container: &str) -> usize {
    let image = said(&["inspect", "--format", "{{.Image}}", container]);
    said(&["image", "inspect", "--format", "{{len .RootFS.Layers}}", &image]).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_volumes_of_an_image_live_as_long_as_the_kept_bottle() {
    for fixture in docker().await {
        let home = fixture.prepared().await.expect("prepared").inside.expect("an image").home;
        let image = Image::new(&fixture, "volumes", &format!("VOLUME [\"{WORKSPACE}\", \"{home}\"]")).await;
        let bottle = image.bottle(&fixture, "volumes", Origin::New).await;
        let channel = bottle.provisioned().await;
        write(&channel, &format!("{WORKSPACE}/work"), b"done").await;
        write(&channel, &format!("{home}/settings"), b"mine").await;
        // The snapshot does not contain the workspace, so the workspace is not treated as saved.
        let new = NewSnapshot::default();
        let frozen = fixture.backend.make_snapshot(bottle.slug(), &new, ProgressSink::discard());
        let frozen = frozen.await.expect("frozen");
        assert!(!frozen.has_workspace);
        fixture.backend.remove_snapshot(&frozen.snapshot).await.expect("removed");
        bottle.stop().await;

        bottle.open(Access::Read).await;
        let channel = bottle.provisioned().await;
        assert_eq!(read(&channel, &format!("{WORKSPACE}/work")).await.as_deref(), Some("done"));
        let script = format!("(echo x >{WORKSPACE}/new) 2>/dev/null || echo denied");
        let (output, _) = run(&channel, &["/bin/sh", "-c", &script]).await.expect("ran");
        assert_eq!(output, "denied\n");
        bottle.stop().await;
        bottle.open(Access::Write).await;
        let channel = bottle.provisioned().await;
        assert_eq!(read(&channel, &format!("{home}/settings")).await.as_deref(), Some("mine"));
        write(&channel, &format!("{WORKSPACE}/more"), b"later").await;
        bottle.stop().await;

        let again = image.bottle(&fixture, "volumes", Origin::Kept).await;
        let channel = again.provisioned().await;
        for (path, content) in [("work", "done"), ("more", "later")] {
            let found = read(&channel, &format!("{WORKSPACE}/{path}")).await;
            assert_eq!(found.as_deref(), Some(content), "{path}");
        }
        let volumes = volumes_of(&layers_of(&again.found().await));
        assert_eq!(volumes.len(), 2);
        again.remove().await;
        for volume in volumes {
            assert_eq!(engine::docker(&["volume", "inspect", &volume]), None, "it is left");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_container_without_a_network_is_started_again() {
    for fixture in docker().await.into_iter().filter(|fixture| !fixture.is_networked()) {
        let bottle = fixture.bottle("again").await;
        let container = layers_of(&bottle.found().await);
        let (layers, channel) = (image_layers(&container), bottle.provisioned().await);
        write(&channel, &format!("{WORKSPACE}/work"), b"done").await;
        write(&channel, "/tmp/scratch", b"of this launch").await;
        bottle.stop().await;
        for round in 0..3 {
            let mut again = fixture.planned("again");
            again.origin = Origin::Kept;
            again.prepared = fixture.prepared().await.expect("prepared");
            // The engine changes the limits of the same container.
            again.plan.resources = Resources { pids: Some(400 + round), ..Resources::default() };
            again.begin().await;
            let channel = again.provisioned().await;
            assert_eq!(read(&channel, "work").await.as_deref(), Some("done"));
            assert_eq!(read(&channel, "/tmp/scratch").await, None, "data of another launch");
            let limit = said(&["inspect", "--format", "{{.HostConfig.PidsLimit}}", &container]);
            assert_eq!(limit, (400 + round).to_string());
            again.stop().await;
            assert_eq!(layers_of(&again.found().await), container);
        }
        assert_eq!(image_layers(&container), layers);
        let listed = said(&["images", "--all", "--format", "{{.Repository}}:{{.Tag}}"]);
        assert!(!listed.contains(&format!("bottle-kept:{}", fixture.host.home_hash())), "{listed}");
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_many_layers_is_flattened_and_keeps_its_configuration() {
    for fixture in docker().await.into_iter().filter(Fixture::is_networked) {
        let many: String = (0..100).map(|layer| format!("WORKDIR /deep/{layer}\n")).collect();
        let image = Image::new(&fixture, "deep", &format!("{many}ENV GREETING=\"a \\\"$5\\\" b\"")).await;
        let bottle = image.bottle(&fixture, "deep", Origin::New).await;
        let channel = bottle.provisioned().await;
        write(&channel, &format!("{WORKSPACE}/work"), b"done").await;
        let env = "{{range .Config.Env}}{{println .}}{{end}}";
        let before = said(&["inspect", "--format", env, &layers_of(&bottle.found().await)]);
        assert!(before.contains("GREETING"), "{before}");
        bottle.stop().await;
        let again = image.bottle(&fixture, "deep", Origin::Kept).await;
        let channel = again.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("done"));
        let container = layers_of(&again.found().await);
        assert!(image_layers(&container) <= 2, "{}", image_layers(&container));
        assert_eq!(said(&["inspect", "--format", env, &container]), before);
        again.remove().await;
        assert_eq!(again.found().await, [], "the flat image is removed with the container");
    }
}

/// After a commit, the snapshot is based on the image of the earlier resume.
#[tokio::test(flavor = "multi_thread")]
async fn the_image_of_a_resume_on_which_a_snapshot_is_based_is_removed_once() {
    for fixture in docker().await.into_iter().filter(Fixture::is_networked) {
        let bottle = fixture.bottle("based").await;
        let channel = bottle.provisioned().await;
        write(&channel, &format!("{WORKSPACE}/work"), b"done").await;
        bottle.stop().await;
        let again = fixture.bottle_from("based", Origin::Kept).await;
        let _ = again.provisioned().await;
        let snapshot = again.make_snapshot(None).await;
        // Only the image remains of this launch, because the snapshot needs the image.
        let container = layers_of(&again.found().await);
        let kept_image = said(&["inspect", "--format", "{{.Image}}", &container]);
        again.stop().await;
        said(&["rm", "--force", "--volumes", &container]);
        let found = again.found().await;
        assert!(found.iter().any(|resource| resource.id == kept_image), "{found:?}");
        let removed = tokio::time::timeout(std::time::Duration::from_secs(60), again.remove()).await;
        removed.expect("the removal ends");
        assert_eq!(again.found().await, []);
        let third = fixture.bottle_from("based", Origin::Snapshot(snapshot.clone())).await;
        let channel = third.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("done"));
        third.remove().await;

        fixture.backend.remove_snapshot(&snapshot).await.expect("removed");
        assert_eq!(
            engine::docker(&["image", "inspect", &kept_image]),
            None,
            "it is removed with the snapshot"
        );
    }
}

/// A kept container whose image was removed can still be read, saved and resumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_bottle_survives_the_removal_of_its_image() {
    for fixture in docker().await {
        let image = Image::new(&fixture, "removed", "ENV A=b").await;
        let bottle = image.bottle(&fixture, "removed", Origin::New).await;
        let channel = bottle.provisioned().await;
        write(&channel, &format!("{WORKSPACE}/work"), b"done").await;
        bottle.stop().await;
        said(&["rmi", "--force", &image.0]);
        bottle.open(Access::Read).await;
        let channel = bottle.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("done"));
        bottle.stop().await;
        let snapshot = bottle.make_snapshot(None).await;
        let again = image.bottle(&fixture, "removed", Origin::Kept).await;
        let channel = again.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("done"));
        again.remove().await;
        fixture.backend.remove_snapshot(&snapshot).await.expect("removed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_in_use_by_a_foreign_container_is_named_in_bounded_time() {
    let Some(fixture) = docker().await.into_iter().find(Fixture::is_networked) else { return };
    let bottle = fixture.bottle("used").await;
    bottle.stop().await;
    let again = fixture.bottle_from("used", Origin::Kept).await;
    let container = layers_of(&again.found().await);
    let kept_image = said(&["inspect", "--format", "{{.Image}}", &container]);
    let foreign = said(&["create", "--entrypoint", "/x", &kept_image]);
    again.stop().await;
    said(&["rm", "--force", "--volumes", &container]);
    let begun = std::time::Instant::now();
    let error: BackendError = fixture.backend.remove(&again.found().await).await.expect_err("it is used");
    assert!(error.message.contains(&foreign[..12]), "{error}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
    said(&["rm", &foreign]);
    again.remove().await;
    assert_eq!(again.found().await, []);
}
