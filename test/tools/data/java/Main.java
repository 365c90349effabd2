import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;
import java.util.stream.IntStream;

/** Threads, a temporary file and a child process. */
public class Main {
    public static void main(String[] args) throws Exception {
        var pool = Executors.newFixedThreadPool(3);
        int sum = pool.submit(() -> IntStream.range(0, 100).parallel().sum()).get();
        pool.shutdown();
        Path temp = Files.createTempFile(Path.of("."), "t", ".txt");
        Files.writeString(temp, "abc");
        Process child = new ProcessBuilder("cat", temp.toString()).start();
        int n = child.getInputStream().readAllBytes().length;
        child.waitFor();
        System.out.println("sum " + sum + ", file " + n);
    }
}
