//! The control of the system call filter: developer programs work under the allowlist.

use bottle_test_support::skip;

use crate::fixture::every_isolating_backend;

/// A program, and a command line that uses it and prints `fine` if it works.
const USED: [(&str, &str); 16] = [
    ("sh", "seq 9 | sort -r | tail -1 | grep -q 1 && (sleep 0.01 & wait) && echo fine"),
    (
        "bash",
        "bash -c 'mapfile -t a < <(printf \"1\\n2\\n\"); coproc cat; echo x >&${COPROC[1]}; read y <&${COPROC[0]}; \
        kill $COPROC_PID; [ $y${a[1]} = x2 ] && echo fine'",
    ),
    (
        "git",
        "git init -q r && cd r && git config user.email a@b.c && git config user.name a && seq 999 >f && git add f && \
        git commit -qm one && git gc -q && git clone -q . ../c && git -C ../c log --oneline | grep -q one && echo fine",
    ),
    (
        "python3",
        "python3 -c 'import asyncio, multiprocessing as m, ssl, sqlite3, subprocess, tempfile, threading\n\
        def f(q): q.put(1)\n\
        q = m.Queue(); p = m.Process(target=f, args=(q,)); p.start(); assert q.get() == 1; p.join()\n\
        d = sqlite3.connect(\"d.db\"); d.execute(\"create table t (a)\"); d.commit()\n\
        assert asyncio.run(asyncio.to_thread(subprocess.check_output, [\"echo\", \"x\"])) == b\"x\\n\"\n\
        print(\"fine\")'",
    ),
    (
        "node",
        "node -e 'const {Worker} = require(\"worker_threads\"); const cp = require(\"child_process\");\n\
        require(\"fs\").watch(\".\").close(); cp.execSync(\"true\");\n\
        new Worker(\"1\", {eval: true}).on(\"exit\", () => console.log(\"fine\"))'",
    ),
    (
        "gcc",
        "printf '#include <pthread.h>\\n#include <stdio.h>\\nvoid *f(void *a) { return a; }\\nint main(void) { pthread_t t; \
        pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts(\"fine\"); }\\n' >a.c && gcc -O2 -pthread a.c -o a && ./a",
    ),
    ("make", "printf 'all: a b\\n\\t@echo fine\\na b:\\n\\t@sleep 0.01\\n' >Makefile && make -sj4"),
    (
        "perl",
        "perl -MPOSIX -e 'pipe R, W; if (!fork) { print W \"x\"; exit } close W; wait; print \"fine\\n\" if <R> eq \"x\"'",
    ),
    (
        "tar",
        "mkdir t && seq 99 >t/f && ln t/f t/g && tar czf t.tgz t && rm -r t && tar xzf t.tgz && [ t/f -ef t/g ] && echo fine",
    ),
    (
        "tmux",
        "tmux -f /dev/null -S ./s new-session -d 'echo ok >o; sleep 9' && sleep 0.3 && cat o | grep -q ok && \
        tmux -S ./s kill-server && echo fine",
    ),
    (
        "curl",
        "curl -s http://127.0.0.1:1/; [ $? = 7 ] && curl -s file:///etc/hostname >h && [ -s h ] && echo fine",
    ),
    (
        "ssh",
        "ssh-keygen -q -t ed25519 -N '' -f k && ssh -o BatchMode=yes -o ConnectTimeout=2 -p 1 127.0.0.1 true 2>&1 | \
        grep -q refused && echo fine",
    ),
    (
        "gdb",
        "gdb -q -batch -ex 'set startup-with-shell off' -ex run -ex 'print 6*7' --args /bin/true 2>&1 | grep -q '= 42' && echo fine",
    ),
    ("strace", "strace -f -o o /bin/true && grep -q execve o && echo fine"),
    (
        "find",
        "mkdir -p a/b && touch a/b/c && find a -newermt 2001-01-01 -name c -exec chmod 600 {} + -print | grep -q c && echo fine",
    ),
    ("flock", "flock l true && timeout 5 true && nice true && setsid true && stdbuf -oL true && echo fine"),
];

#[tokio::test(flavor = "multi_thread")]
async fn developer_programs_work() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("tools").await;
        let channel = bottle.provisioned().await;
        for (program, line) in USED {
            let script = format!(
                "command -v {program} >/dev/null || {{ echo absent; exit; }}; \
                 mkdir -p /workspace/{program}.d && cd /workspace/{program}.d && {line}"
            );
            let (said, exit) = crate::fixture::run(&channel, &["/bin/sh", "-c", &script]).await.expect("ran");
            match said.trim() {
                "absent" => skip::aloud(program, &format!("it is not there on {}", fixture.name())),
                "fine" => {}
                _ => panic!("{}: {program}: {exit:?} {said}", fixture.name()),
            }
        }
        bottle.remove().await;
    }
}
