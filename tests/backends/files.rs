//! Tests which files an agent may write, and the limits on them.

use std::os::unix::fs::PermissionsExt;

use bottle_backend::{Exposed, HostFiles, Prepared, ProgressSink};
use bottle_plan::Resources;
use bottle_policy::names::GUEST_PROGRAM;
use bottle_protocol::session::guest::{Changed, Exit};
use bottle_repository::{Directory, Stop, Walk};
use jiff::Timestamp;

use crate::fixture::{every_backend, every_isolating_backend, run};

#[tokio::test(flavor = "multi_thread")]
async fn home_and_workspace_are_writable_and_the_system_is_not() {
    for fixture in every_isolating_backend().await {
        if fixture.is_in_image() {
            continue;
        }
        let bottle = fixture.bottle("writes").await;
        // In a container, the program's usual path is a link that the bottle creates.
        let program = if fixture.name() == "docker" { "/run/bottle/bin/bottle" } else { GUEST_PROGRAM };
        let output = bottle
            .shell(
                &"for f in /home/agent/f /workspace/f /tmp/f /var/tmp/f /run/f /dev/shm/f; do \
                     touch $f || echo cannot $f; done; \
                 for f in / /etc /usr /usr/bin /dev /proc /sys /run/bottle/proxy /bin /lib; do \
                     touch $f/f 2>/dev/null && echo wrote $f; done; \
                 rm -f /etc/passwd PROGRAM 2>/dev/null; \
                 (echo x >/etc/passwd && echo wrote; echo x >PROGRAM && echo wrote) 2>/dev/null; \
                 pwd; true"
                    .replace("PROGRAM", program),
            )
            .await;
        assert_eq!(output, "/workspace\n", "{}", fixture.name());
        if let Some(workspace) = fixture.backend.kept_workspace(bottle.slug()) {
            assert!(workspace.join("f").exists(), "{}", fixture.name());
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_user_are_copied_and_belong_to_the_agent() {
    for fixture in every_backend().await {
        let from = fixture.host.user_home.join("project");
        std::fs::create_dir_all(from.join("src")).expect("directory");
        std::fs::write(from.join("src/tool"), "the tool").expect("file");
        std::fs::set_permissions(from.join("src/tool"), PermissionsExt::from_mode(0o6750)).expect("mode");
        std::os::unix::fs::symlink("/etc/shadow", from.join("link")).expect("link");
        let bottle = fixture.bottle("copied").await;
        let copy = |directory: Option<&str>| HostFiles {
            from: from.clone(),
            directory: directory.map(str::to_owned),
            entries: Box::new(Walk::content(Directory::open(&from).expect("opened")).map(|entry| Ok(entry?))),
            progress: ProgressSink::discard(),
            stop: Stop::default(),
        };
        let mut copied = Vec::new();
        for directory in [None, Some("a project")] {
            copied.push(fixture.backend.copy_files(&bottle.launch(), copy(directory)).await.expect("copied"));
        }
        assert_eq!(copied, [fixture.name() == "linux"; 2], "{}", fixture.name());
        if copied[0] {
            let show = "for directory in . 'a project'; do cd \"/workspace/$directory\"; cat src/tool; echo; readlink link; \
                        stat -c '%U %G %a' src src/tool; stat -c '%U %G' link; \
                        echo more >>src/tool; touch src/new; done";
            let expected = "the tool\n/etc/shadow\nagent agent 755\nagent agent 750\nagent agent\n";
            assert_eq!(bottle.shell(show).await, expected.repeat(2));
        }
        assert_eq!(std::fs::read_to_string(from.join("src/tool")).expect("there"), "the tool");
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exposed_paths_are_read_only_and_their_siblings_invisible() {
    for fixture in every_isolating_backend().await {
        if !fixture.shows_the_host() {
            continue;
        }
        let tools = fixture.host.user_home.join("tools/v1");
        std::fs::create_dir_all(tools.join("bin")).expect("made");
        std::fs::write(tools.join("bin/tool"), "the tool").expect("written");
        std::fs::write(fixture.host.user_home.join("secret"), "a secret").expect("written");
        let link = fixture.host.user_home.join("tools/current");
        std::os::unix::fs::symlink("v1", &link).expect("link");
        let exposed = |path: &std::path::Path| Exposed { path: path.to_owned(), why: "a test".to_owned() };
        let prepared = Prepared { exposed: vec![exposed(&tools), exposed(&link)], ..Prepared::default() };
        let bottle = fixture.bottle_with("exposed", prepared, Resources::default()).await;
        let user = fixture.host.user_home.display();
        let output = bottle
            .shell(&format!(
                "cat {user}/tools/current/bin/tool; echo; ls -A {user}; \
                 touch {user}/tools/v1/f {user}/f 2>/dev/null && echo wrote; true"
            ))
            .await;
        assert_eq!(output, "the tool\ntools\n", "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn detects_changes_and_removes_unreadable_directories() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("work").await;
        let pause = || tokio::time::sleep(std::time::Duration::from_millis(20));
        pause().await;
        let before = Timestamp::now();
        pause().await;
        bottle.shell("mkdir -p a/b; echo x >a/b/c; cd ~ && mkdir -p shut/in && echo x >shut/in/f && chmod 0 shut/in shut").await;
        pause().await;
        let after = Timestamp::now();
        // On a backend with a single stream to pid 1, the query takes over that stream, so no command can run
        // afterwards.
        let slug = bottle.slug();
        for (since, changed) in [(before, true), (after, false)] {
            let request = Changed::since(since);
            let changes = fixture.backend.find_work(slug, &request, false).await.expect("looked");
            assert_eq!(changes.work, changed, "{}", fixture.name());
        }
        bottle.remove().await;
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_are_bounded() {
    for fixture in every_isolating_backend().await {
        let resources = Resources { pids: Some(24), ..Resources::default() };
        let bottle = fixture.bottle_with("bounded", Prepared::default(), resources).await;
        let output = bottle
            .shell(
                "sh -c 'i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done' 2>/tmp/e; \
                 read -r line </tmp/e; echo \"$line\"",
            )
            .await;
        assert!(output.contains("Cannot fork"), "{}: {output:?}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tmpfs_directories_are_bounded() {
    for fixture in every_isolating_backend().await {
        let resources = Resources { disk: Some(8 << 20), ..Resources::default() };
        let bottle = fixture.bottle_with("small", Prepared::default(), resources).await;
        let output = bottle
            .shell(
                "head -c 6m /dev/zero >/tmp/fits && echo fits; \
                 head -c 6m /dev/zero >/tmp/more 2>/dev/null || echo full; rm /tmp/*; \
                 i=0; while [ $i -lt 1000 ] && true >/tmp/$i; do i=$((i+1)); done 2>/dev/null; \
                 [ $i -lt 1000 ] && echo no more files",
            )
            .await;
        // `container` cannot limit the number of files. A large number of files takes only memory of the virtual
        // machine.
        let files = if fixture.name() == "apple" { "" } else { "no more files\n" };
        assert_eq!(output, format!("fits\nfull\n{files}"), "{}", fixture.name());
        bottle.remove().await;

        let bottle = fixture.bottle("usual-room").await;
        let output = bottle.shell("df -k --output=size /tmp /dev/shm /run | tail -n +2").await;
        let sizes: Vec<u64> = output.lines().filter_map(|line| line.trim().parse().ok()).collect();
        assert_eq!(sizes.len(), 3, "{}: {output}", fixture.name());
        assert!(sizes.iter().all(|size| *size <= 4 << 20), "{}: {output}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_are_passed_through() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("codes").await;
        let channel = bottle.provisioned().await;
        let (argv, code): (&[&str], _) =
            if fixture.name() == "fake" { (&["exit", "7"], 7) } else { (&["/bin/sh", "-c", "exit 7"], 7) };
        let (_, exit) = run(&channel, argv).await.expect("ran");
        assert_eq!(exit, Exit::Code(code), "{}", fixture.name());
        bottle.remove().await;
    }
}
