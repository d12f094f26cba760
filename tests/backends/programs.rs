//! Tests that agents installed on the host run unchanged in a bottle.

use std::path::{Path, PathBuf};
use std::process::Command;

use bottle_plan::Resources;
use bottle_protocol::session::guest::Exit;
use bottle_test_support::skip;

use crate::fixture::{Fixture, run};

/// The linux backend with this directory at the beginning of `PATH`.
async fn fixture_with(directory: &Path) -> Option<Fixture> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([directory.to_owned()].into_iter().chain(std::env::split_paths(&own)));
    let fixture = Fixture::new("linux", &[("PATH", path.expect("path").to_str().expect("UTF-8"))]);
    let check = fixture.backend.check().await;
    if !check.usable {
        skip::aloud("programs of the host", &format!("linux is not usable here: {:?}", check.findings));
        return None;
    }
    Some(fixture)
}

/// Runs a host program in a bottle as the agent's program and returns its output.
async fn says(fixture: &Fixture, argv: &[&str]) -> String {
    let mut bottle = fixture.planned("installed");
    bottle.plan.agent.argv = argv.iter().map(ToString::to_string).collect();
    let prepared = fixture
        .backend
        .prepare(&bottle.plan, &Default::default(), &bottle_backend::ProgressSink::discard())
        .await
        .expect("prepared");
    let program = prepared.program.clone().expect("found on the host");
    let path: Vec<String> = prepared.path.iter().map(|directory| directory.display().to_string()).collect();
    let bottle = fixture.bottle_with("installed", prepared, Resources::default()).await;
    let channel = bottle.provisioned().await;
    let path = format!("PATH={}:/usr/local/bin:/usr/bin:/bin", path.join(":"));
    let full: Vec<&str> =
        ["/usr/bin/env", &path, &program].into_iter().chain(argv[1..].iter().copied()).collect();
    let (output, exit) = run(&channel, &full).await.expect("ran");
    assert_eq!(exit, Exit::Code(0), "{output}");
    bottle.remove().await;
    output
}

fn executable(path: &Path, content: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path.parent().expect("parent")).expect("directories");
    std::fs::write(path, content).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("executable");
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("directory");
    // Everyone can execute programs that root installed, like system programs.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("open");
    let path = directory.path().canonicalize().expect("real");
    (directory, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_a_virtual_environment_finds_its_modules() {
    let (_directory, place) = directory();
    let venv = place.join("venv");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    if !made.is_ok_and(|status| status.success()) {
        skip::aloud("a virtual environment", &"python3 here makes none");
        return;
    }
    let library =
        std::fs::read_dir(venv.join("lib")).expect("lib").next().expect("one").expect("read").path();
    std::fs::write(library.join("site-packages/tool.py"), "import json, ssl, sys\nprint(sys.prefix)\n")
        .expect("written");
    let shebang = format!("#!{}\nimport tool\n", venv.join("bin/python").display());
    executable(&venv.join("bin/tool"), &shebang);
    let Some(fixture) = fixture_with(&venv.join("bin")).await else { return };
    assert_eq!(says(&fixture, &["tool"]).await, format!("{}\n", venv.display()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_a_node_package_finds_its_dependencies() {
    if Command::new("node").arg("--version").output().is_err() {
        skip::aloud("a node package", &"there is no node here");
        return;
    }
    let (_directory, place) = directory();
    let modules = place.join("lib/node_modules/@scope/tool");
    executable(
        &modules.join("dist/cli.js"),
        "#!/usr/bin/env node\nconsole.log(require('dep')(process.argv[2]))\n",
    );
    executable(&modules.join("node_modules/dep/index.js"), "module.exports = word => 'dep says ' + word\n");
    std::fs::create_dir(place.join("bin")).expect("made");
    std::os::unix::fs::symlink("../lib/node_modules/@scope/tool/dist/cli.js", place.join("bin/tool"))
        .expect("link");
    let Some(fixture) = fixture_with(&place.join("bin")).await else { return };
    assert_eq!(says(&fixture, &["tool", "hello"]).await, "dep says hello\n");
}
