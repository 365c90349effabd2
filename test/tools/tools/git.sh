git init -q -b main repo
cd repo
git config user.name t; git config user.email t@example.test
for i in 1 2 3; do echo "$i" >"f$i"; git add "f$i"; git commit -qm "commit $i"; done
git checkout -qb topic HEAD~2
echo topic >topic; git add topic; git commit -qm topic
git rebase -q main
test "$(git log --format=%s | head -n 1)" = topic
test "$(git rev-list --count HEAD)" = 4
git worktree add -q ../tree main
git -C ../tree status --porcelain
echo more >>../tree/f1; git -C ../tree commit -qam more
git stash list; git gc -q; git fsck --strict 2>&1
git clone -q . ../clone
test -f ../clone/topic
git worktree remove ../tree
