//! Installs software in a bottle on the host's system. The host's files must not change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bottle_backend::Origin;
use bottle_test_support::skip;

use crate::fixture::{Fixture, every_isolating_backend, run};

async fn fixtures() -> Vec<Fixture> {
    let mut fixtures = every_isolating_backend().await;
    fixtures.retain(Fixture::shows_the_host);
    fixtures
}

fn all_below(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

/// For each way of installing: a name, the program that it requires, and a command line that installs a program, runs
/// the program, and prints `fine`. The command line for `apt` installs nothing. It checks that the script which
/// replaces apt names alternatives.
const INSTALLED: [(&str, &str, &str); 5] = [
    (
        "by hand",
        "sh",
        "printf '#!/bin/sh\\necho fine\\n' >/usr/local/bin/tool && chmod 755 /usr/local/bin/tool && tool",
    ),
    (
        "make",
        "make",
        "printf 'install:\\n\\tmkdir -p $(P)/share/t $(P)/lib/t\\n\\tinstall -D f $(P)/bin/made\\n' >Makefile; \
        printf '#!/bin/sh\\necho fine\\n' >f; make -s install P=/usr/local && make -s install P=/opt/made && \
        /opt/made/bin/made >/dev/null && made",
    ),
    (
        "pip",
        "pip3",
        "mkdir -p w/tool-1.dist-info && echo 'print(\"fine\")' >w/tool_of_test.py && cd w && \
        printf 'Metadata-Version: 2.1\\nName: tool\\nVersion: 1\\n' >tool-1.dist-info/METADATA && \
        printf 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n' >tool-1.dist-info/WHEEL && \
        touch tool-1.dist-info/RECORD && /usr/bin/python3 -m zipfile -c ../tool-1-py3-none-any.whl * && cd .. && \
        PIP_BREAK_SYSTEM_PACKAGES=1 /usr/bin/python3 -m pip install -q --no-index --no-deps ./tool-1-py3-none-any.whl && cd / && \
        /usr/bin/python3 -c 'import tool_of_test as t; assert t.__file__.startswith(\"/usr/local/\"), t.__file__'",
    ),
    (
        "npm",
        "npm",
        "mkdir p && printf '{\"name\":\"tool-of-npm\",\"version\":\"1.0.0\",\"bin\":\"t.js\"}' >p/package.json && \
        printf '#!/usr/bin/env node\\nconsole.log(\"fine\")\\n' >p/t.js && npm pack -s ./p >/dev/null && \
        NPM_CONFIG_PREFIX=/usr/local npm install -gs --offline ./tool-of-npm-1.0.0.tgz >/dev/null && tool-of-npm",
    ),
    (
        "apt",
        "apt-get",
        "apt-get install -y hello 2>&1 | grep -q 'no apt here' && apt update 2>&1 | grep -q image && echo fine",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn software_installs_to_the_prefix_and_is_in_snapshots() {
    for fixture in fixtures().await {
        let before = all_below(Path::new("/usr/local"));
        let bottle = fixture.bottle("installs").await;
        let channel = bottle.provisioned().await;
        for (name, needs, line) in INSTALLED {
            let script = format!(
                "command -v {needs} >/dev/null || {{ echo absent; exit; }}; d=/workspace/{needs}; mkdir $d && cd $d && {line}"
            );
            let (said, exit) = run(&channel, &["/bin/sh", "-c", &script]).await.expect("ran");
            match said.trim() {
                "absent" => skip::aloud(name, &format!("there is no {needs} here")),
                "fine" => {}
                _ => panic!("{name}: {exit:?} {said}"),
            }
        }
        // The installed files are beside the host's files and exist only in this bottle. The host's files cannot be
        // changed through another path.
        let (said, _) = run(
            &channel,
            &[
                "/bin/sh",
                "-c",
                "ls /usr/local/bin | wc -l; touch /usr/x /usr/bin/x ~/.prefix/x /home/agent/.prefix/local/bin/x 2>/dev/null; \
                 mv /home/agent/.prefix /home/agent/moved 2>/dev/null; rm -rf /home/agent/.prefix 2>/dev/null; tool",
            ],
        )
        .await
        .expect("ran");
        let mut lines = said.lines();
        let seen: usize = lines.next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{said}"));
        let of_host = std::fs::read_dir("/usr/local/bin").into_iter().flatten().count();
        assert!(seen > of_host && lines.eq(["fine"]), "{of_host}: {said}");
        assert_eq!(all_below(Path::new("/usr/local")), before, "the host is as it was");

        // A snapshot of the bottle contains the installed software, because the software is stored in the agent's home.
        let snapshot = bottle.make_snapshot(None).await;
        bottle.stop().await;
        let kept = fixture.bottle_from("installs", Origin::Kept).await;
        assert_eq!(kept.shell("tool").await, "fine\n", "kept");
        kept.remove().await;
        let again = fixture.bottle_from("installs", Origin::Snapshot(snapshot)).await;
        assert_eq!(
            again.shell("tool; cat /opt/made/bin/made | tail -1").await,
            "fine\necho fine\n",
            "frozen"
        );
        again.remove().await;
    }
}
