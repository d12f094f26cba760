//! Tests hostile files in an agent's directories, while the host searches the directories for changes and removes them.

use std::os::unix::fs::PermissionsExt;

use bottle_protocol::session::guest::Changed;

use crate::fixture::every_isolating_backend;

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_bottle_follows_no_link_and_ignores_modes() {
    for fixture in every_isolating_backend().await {
        let precious = fixture.host.user_home.join("precious");
        std::fs::create_dir_all(&precious).expect("made");
        std::fs::write(precious.join("file"), "kept").expect("written");
        std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(0o755)).expect("open");
        let since = jiff::Timestamp::now();
        let bottle = fixture.bottle("litter").await;
        bottle
            .shell(&format!(
                "for d in /workspace /home/agent; do cd $d; ln -s {0} directory; ln -s {0}/file file; ln -s / root; \
                     ln -s .. up; mkdir -p deep/er; ln -s ../../.. deep/er/up; mkfifo deep/pipe; \
                     touch 'a\nb' \"$(printf '\\033]0;x\\007')\" ./-rf; chmod 0 deep/er; chmod 0 deep; done",
                precious.display()
            ))
            .await;
        // Unreadable files, and files whose reading blocks, do not stop the search.
        let request = Changed::since(since);
        let looked = fixture.backend.find_work(bottle.slug(), &request, false);
        let looked =
            tokio::time::timeout(std::time::Duration::from_secs(60), looked).await.expect("an answer");
        assert!(looked.map_or(true, |changes| changes.work), "{}", fixture.name());
        bottle.remove().await;
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
        assert_eq!(std::fs::read_to_string(precious.join("file")).expect("there"), "kept");
    }
}
