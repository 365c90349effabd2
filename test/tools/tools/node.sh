(cd dep && npm pack --silent)
cd app
npm install --offline --no-audit --no-fund --silent ../dep/dep-1.0.0.tgz
node main.js | grep -q 'worker 42, child 43, piped 44'
