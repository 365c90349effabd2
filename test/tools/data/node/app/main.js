// A worker thread, a child with an IPC channel and a child with pipes.
const { Worker, isMainThread, parentPort } = require("worker_threads");
const { fork, execFileSync } = require("child_process");
const { once } = require("events");
const inc = require("dep");

async function main() {
  const worker = new Worker(__filename);
  const [fromWorker] = await once(worker, "message");
  const child = fork(__filename, ["child"]);
  child.send(fromWorker);
  const [fromChild] = await once(child, "message");
  child.disconnect();
  const piped = execFileSync(process.execPath, ["-p", `${fromChild} + 1`]).toString().trim();
  console.log(`worker ${fromWorker}, child ${fromChild}, piped ${piped}`);
}

if (!isMainThread) parentPort.postMessage(inc(41));
else if (process.argv[2] === "child") process.on("message", (n) => process.send(inc(n)));
else main();
