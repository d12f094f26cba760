//! Tests the images that `bottle` builds itself: the sidecars' image, the volume with the program, and the
//! images of the providers.

use bottle_containers::docker::images::PROGRAM_FILE;
use bottle_manifest::agent_provider::Template;
use bottle_plan::{ImageSource, Plan};

use crate::fixture::{Fixture, docker, in_image};

#[tokio::test]
async fn the_sidecar_image_is_minimal_and_built_once() {
    let Some(fixture) = Fixture::new("the guards' image") else { return };
    let sink = fixture.reports.sink();
    let id = fixture.images().sidecars(&sink).await.expect("built");
    let said = fixture.reports.take();
    assert!(said.iter().any(|line| line.starts_with("> Step 1/")), "{said:?}");
    let inside =
        in_image(&id, "git --version; command -v ssh; bottle; stat -c '%U %a' /usr/local/bin/bottle");
    let lines: Vec<&str> = inside.lines().collect();
    let [git, ssh, program, owner] = lines[..] else { panic!("{inside}") };
    assert!(git.starts_with("git version") && ssh == "/usr/bin/ssh", "{inside}");
    assert!(program.starts_with("the program ") && owner == "root 755", "{inside}");
    let images = fixture.images();
    assert_eq!(images.sidecars(&sink).await.expect("there"), id);
    assert_eq!(fixture.reports.take(), [""; 0], "an unchanged image is built again");
    let history = docker(&["history", "--no-trunc", "--format", "{{.CreatedBy}}", &id]);
    assert!(!history.contains("BEGIN CERTIFICATE") && !history.to_lowercase().contains("proxy"), "{history}");
}

#[tokio::test]
async fn concurrent_starts_share_one_program_volume() {
    let Some(fixture) = Fixture::new("the program's volume") else { return };
    let starts: Vec<_> = (0..4).map(|_| fixture.images()).collect();
    let volumes = futures_util::future::join_all(starts.iter().map(|images| images.program())).await;
    let volumes: Vec<String> = volumes.into_iter().map(|volume| volume.expect("a volume")).collect();
    assert!(volumes.iter().all(|volume| *volume == volumes[0]), "{volumes:?}");
    assert_eq!(fixture.images().program().await.expect("there"), volumes[0]);
    let mount = format!("{}:/program:ro", volumes[0]);
    let program = format!("/program/{PROGRAM_FILE}");
    let said = docker(&["run", "--rm", "--network=none", "-v", &mount, "debian:bookworm-slim", &program]);
    assert!(said.starts_with("the program "), "{said}");
    let mark = &volumes[0][..volumes[0].rfind('-').expect("an attempt")];
    let left = docker(&["volume", "ls", "--quiet", "--filter", &format!("name={mark}")]);
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    assert_eq!(left, [mark, &volumes[0]], "what lost the race is still there");
    assert_eq!(fixture.stand_ins(), "", "a container was left");
}

#[tokio::test]
async fn a_command_agent_has_tools_and_a_home() {
    let Some(fixture) = Fixture::new("the image for a command") else { return };
    let image = fixture.agent(&fixture.plan()).await.expect("an image");
    let account = &image.account;
    assert_eq!((account.name.as_str(), account.uid, account.gid), ("agent", 1000, 1000));
    assert_eq!(account.home, "/home/agent");
    assert!(image.volumes.is_empty() && image.left_out.is_empty(), "{image:?}");
    let inside = in_image(
        &image.id,
        "id -un; cd && pwd; touch here && stat -c %U here; for t in git curl rg python3 ssh less ps pip3 gh jq make; do command -v $t; done; ls -A /fetch /out 2>&1; true",
    );
    assert!(inside.starts_with("agent\n/home/agent\nagent\n/usr/bin/git\n"), "{inside}");
    assert_eq!(inside.lines().filter(|line| line.starts_with("/usr/bin/")).count(), 11, "{inside}");
    // Each tool does its work as the agent, without a network.
    let day = "cd /tmp && echo 'int main(void){return 0;}' > a.c && cc -o a a.c && ./a && python3 -m venv v && v/bin/pip --version \
               && node -e 'console.log(process.version)' && npm --version && npx --version && echo '{}' | jq -c . \
               && cp a /usr/local/bin/own && mkdir p && printf '[project]\nname=\"p\"\nversion=\"1\"\n' > p/pyproject.toml \
               && mkdir n && echo '{\"name\":\"n\",\"version\":\"1.0.0\",\"bin\":\"x.js\"}' > n/package.json && echo '#!/usr/bin/env node' > n/x.js \
               && npm install --offline --silent --global ./n && n && echo done";
    let day = in_image(&image.id, day);
    assert!(day.contains("\nv22.") && day.ends_with("done"), "{day}");
    assert!(inside.contains("cannot access '/fetch'") && inside.contains("cannot access '/out'"), "{inside}");
    fixture.reports.take();
    assert_eq!(fixture.agent(&fixture.plan()).await.expect("there"), image);
    assert_eq!(fixture.reports.take(), [""; 0], "an unchanged image is built again");
    assert_eq!(fixture.images().ready(&image.id).await.expect("ready"), image);
}

#[tokio::test]
#[ignore = "fetches up to 400 MB for each agent: `.ci/run real-agents`"]
async fn each_agent_has_its_pinned_version_without_build_tools() {
    let Some(fixture) = Fixture::new("the agents' images") else { return };
    for (template, version) in [
        (Template::Claude, "2.1.328 (Claude Code)"),
        (Template::Codex, "codex-cli 0.169.0"),
        (Template::Pi, "0.73.1"),
    ] {
        let plan = Plan { image: ImageSource::Provider(template), ..fixture.plan() };
        let image = fixture.agent(&plan).await.expect("an image");
        let account = &image.account;
        assert_eq!(
            (account.name.as_str(), account.uid, account.home.as_str()),
            ("agent", 1000, "/home/agent")
        );
        let said = in_image(&image.id, &format!("{template} --version 2>&1"));
        assert_eq!(said.lines().next(), Some(version), "{said}");
        let left = in_image(
            &image.id,
            "ls -d /fetch /out /root/.npm /home/agent/.npm 2>/dev/null; find / -xdev -name roots.pem; true",
        );
        assert_eq!(left, "", "{template}");
        let history = docker(&["history", "--no-trunc", "--format", "{{.CreatedBy}}", &image.id]);
        assert!(
            !history.contains("BEGIN CERTIFICATE") && !history.to_lowercase().contains("proxy"),
            "{history}"
        );
        fixture.reports.take();
        assert_eq!(fixture.agent(&plan).await.expect("there"), image);
        assert_eq!(fixture.reports.take(), [""; 0], "an unchanged image is built again");
    }
}
